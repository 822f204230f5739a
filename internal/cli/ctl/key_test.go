package ctl_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// rotated is a fleet of one service, whose clients echo the old key's cookie until the test says otherwise.
func rotated(t *testing.T) (ctl *terminal, echo *atomic.Uint64) {
	t.Helper()
	echo = &atomic.Uint64{}
	echo.Store(3)
	memory := &apitest.Memory{Holders: func(fleet *model.Fleet) *rotation.Nodes { return apitest.AllHold(fleet, echo.Load()) }}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl = &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	return ctl, echo
}

// epochs are those that are known, and the current one last.
func (ctl *terminal) epochs() (all []uint32) {
	fleet, _, err := ctl.memory.Fleet(context.Background())
	if err != nil {
		ctl.t.Fatal(err)
	}
	return append(fleet.Keys.Epochs(), fleet.Keys.Current)
}

func (ctl *terminal) expectEpochs(want ...uint32) {
	ctl.t.Helper()
	if have := ctl.epochs(); !slices.Equal(have, want) {
		ctl.t.Fatalf("epochs and the current one: %v, want %v", have, want)
	}
}

func (ctl *terminal) awaitEpochs(want ...uint32) {
	ctl.t.Helper()
	await.Nil(ctl.t, "epochs are right", func() error {
		if have := ctl.epochs(); !slices.Equal(have, want) {
			return fmt.Errorf("%v, want %v", have, want)
		}
		return nil
	})
}

func TestAKeyIsDroppedByForceAloneWhileClientsEchoIt(t *testing.T) {
	ctl, echo := rotated(t)
	ctl.must("key", "add")
	ctl.must("key", "use", "2")
	ctl.refuse("key drop 1", "3 living connections whose clients still echo epoch 1")
	ctl.expect("keys", "epoch 1           3 connections on it", "epoch 2  current", "key drop 1 waits", "oldest")
	ctl.expect("--json keys", `"drop_refused"`, `"connections": 3`)
	ctl.expectEpochs(1, 2, 2)
	ctl.must("key", "use", "1") // a way back
	ctl.must("key", "use", "2")
	ctl.must("key", "drop", "1", "--force")
	ctl.expectEpochs(2, 2)
	echo.Store(0)
}

// A key that was just added waits to be used: that it cannot be dropped either is no news.
func TestAKeyThatNodesLackYetWaitsToBeUsed(t *testing.T) {
	ctl, _ := rotated(t)
	ctl.memory.Holders = func(fleet *model.Fleet) *rotation.Nodes {
		nodes := apitest.AllHold(fleet, 0)
		nodes.List[1].Report.Epochs = []uint32{1}
		nodes.Keys = model.Keys{}
		return nodes
	}
	ctl.must("key", "add")
	if said := ctl.must("keys"); !strings.Contains(said, "key use 2 waits") || strings.Contains(said, "key drop 2 waits") {
		t.Errorf("keys says %q", said)
	}
}

func TestKeyRotateDoesAllStepsAndWaitsBetweenThem(t *testing.T) {
	ctl, echo := rotated(t)
	var looks atomic.Int32 // at the connections that hold it up
	ctl.memory.Holders = func(fleet *model.Fleet) *rotation.Nodes {
		nodes := apitest.AllHold(fleet, echo.Load())
		if fleet.Keys.Current == 2 {
			looks.Add(1)
		}
		return nodes
	}
	done := make(chan string)
	go func() { done <- ctl.must("key", "rotate") }()
	await.True(t, "the new key is used", func() bool { return looks.Load() > 0 })
	echo.Store(0)
	said := <-done
	ctl.expectEpochs(2, 2)
	at := 0
	for _, line := range []string{"added the key of epoch 2", "cookies are written with epoch 2 now", "waiting: agent agent has 3 living connections", "dropped the key of epoch 1",
		"done: epoch 2 is the only one"} {
		next := strings.Index(said[at:], line)
		if next < 0 {
			t.Fatalf("said %q, without %q in its place", said, line)
		}
		at += next
	}
}

func TestKeyRotateThatIsInterruptedGoesOnOrBack(t *testing.T) {
	ctl, echo := rotated(t)
	for range 2 {
		_, err := ctl.try("key", "rotate", "--deadline", "1500ms")
		if err == nil || !strings.Contains(err.Error(), "3 living connections") || !strings.Contains(err.Error(), "go on with `ballast ctl key rotate`") {
			t.Fatalf("interrupted: %v", err)
		}
		ctl.expectEpochs(1, 2, 2)
	}
	// Back: the new key's connections are those that have to go now.
	ctl.memory.Holders = func(fleet *model.Fleet) *rotation.Nodes {
		nodes := apitest.AllHold(fleet, 0)
		nodes.List[1].Report.Connections[2] = echo.Load()
		return nodes
	}
	_, err := ctl.try("key", "rotate", "--abort", "--deadline", "1500ms")
	if err == nil || !strings.Contains(err.Error(), "still echo epoch 2") || !strings.Contains(err.Error(), "key rotate --abort`") {
		t.Fatalf("interrupted on the way back: %v", err)
	}
	ctl.expectEpochs(1, 2, 1)
	echo.Store(0)
	ctl.must("key", "rotate", "--abort")
	ctl.expectEpochs(1, 1)
	ctl.refuse("key rotate --abort", "there is none")
}

func TestWhoInterruptsKeyRotateIsToldHowToGoOn(t *testing.T) {
	ctl, _ := rotated(t)
	command := exec.Command("/proc/self/exe", append(slices.Clone(ctl.reach), "key", "rotate")...)
	var complained bytes.Buffer
	command.Stderr = &complained
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ctl.awaitEpochs(1, 2, 2)
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := command.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v, want status 130", err)
	}
	for _, want := range []string{"interrupted by SIGINT", "is read too", "go on with `ballast ctl key rotate`"} {
		if !strings.Contains(complained.String(), want) {
			t.Errorf("said %q, without %q", complained.String(), want)
		}
	}
}

func TestTwoWhoRotateAtOnceDoTheSameRotation(t *testing.T) {
	ctl, echo := rotated(t)
	done := make(chan error)
	for range 2 {
		go func() { _, err := ctl.try("key", "rotate", "--deadline", "20s"); done <- err }()
	}
	ctl.awaitEpochs(1, 2, 2)
	echo.Store(0)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	ctl.expectEpochs(2, 2)
}

func TestKeyRotateEndsWhenSomebodyElseGoesBack(t *testing.T) {
	ctl, _ := rotated(t)
	done := make(chan error)
	go func() { _, err := ctl.try("key", "rotate", "--deadline", "20s"); done <- err }()
	ctl.awaitEpochs(1, 2, 2)
	ctl.must("key", "use", "1")
	if err := <-done; err == nil || !strings.Contains(err.Error(), "another request has made epoch 1 current again") {
		t.Errorf("%v", err)
	}
	ctl.expectEpochs(1, 2, 1)
}

func TestKeyRotateNeedsControllers(t *testing.T) {
	ctl, _ := rotated(t)
	ctl.memory.Holders = func(*model.Fleet) *rotation.Nodes { return &rotation.Nodes{Blind: "by a file nobody else is seen"} }
	ctl.refuse("key rotate", "by a file nobody else is seen")
	ctl.must("key", "add")
	ctl.must("key", "use", "2")
	ctl.refuse("key drop 1", "by a file nobody else is seen")
	ctl.must("key", "drop", "1", "--force")
}

// A secret in an argument is in the list of processes and in the history of the shell.
func TestASecretIsReadFromTheInputAndNeedBeNoArgument(t *testing.T) {
	memory := &apitest.Memory{KeysFromFile: true}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, "keys:\n  placement: 000102030405060708090a0b0c0d0e0f\n  current: 1\n  cookie: {1: 00112233445566778899aabbccddeeff}\n"+fleetFile))
	ctl.refuse("key add --epoch 2 --secret -", "32 hexadecimal digits") // there is no input
	const secret = "5c1d2f8a90b7e6431122334455667788"
	shown, err := atTerminal(t, secret+"\n", append(ctl.reach, "key", "add", "--epoch", "2", "--secret", "-")...)
	if err != nil || !strings.Contains(shown, "ballast ctl key add --epoch 2 --secret -\r\nand give it as input: "+secret) {
		t.Errorf("%v; shown: %q", err, shown)
	}
	fleet, _, err := memory.Fleet(t.Context())
	if key := fleet.Keys.Cookie[2]; err != nil || hex.EncodeToString(key[:]) != secret {
		t.Errorf("the key of epoch 2 is %x: %v", key, err)
	}
	ctl.must("key", "use", "2", "--force")
	ctl.must("key", "drop", "1", "--force")
	ctl.must("key", "add", "--epoch", "3", "--secret", "000102030405060708090a0b0c0d0e0f")
}

// Whose store was lost has nodes that go on with its keys: new ones would break their connections.
func TestAStoreThatWasLostGetsNoNewKeysWhileConnectionsLive(t *testing.T) {
	report := &rotation.Report{Epochs: []uint32{2}, Current: 2, Connections: map[uint32]uint64{2: 24}}
	memory := &apitest.Memory{Holders: func(*model.Fleet) *rotation.Nodes {
		return &rotation.Nodes{List: []rotation.Node{{Name: "lb1"}, {Agent: true, Name: "s1", Report: report}, {Agent: true, Name: "s2"}}}
	}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	file := write(t, fleetFile)
	const why = "24 living connections carry keys that the store does not have"
	if shown, err := ctl.try("apply", "-f", file, "--dry-run"); !strings.Contains(shown, "WARNING: "+why) {
		t.Errorf("dry run: %v, %q", err, shown)
	}
	ctl.refuse("apply --yes -f "+file, "--force-keys")
	ctl.refuse("service add other --vip 198.51.100.77 --port 80", why)
	ctl.refuse("key add", why)
	keys := "keys:\n  placement: 000102030405060708090a0b0c0d0e0f\n  current: 2\n  cookie: {2: 00112233445566778899aabbccddeeff}\n"
	ctl.must("apply", "--yes", "-f", write(t, keys+fleetFile))
	ctl.expectEpochs(2, 2)
}

func TestAFileThatTurnsKeysBackIsRefusedWithoutForceKeys(t *testing.T) {
	ctl, _ := rotated(t)
	fleet, _, err := ctl.memory.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys := fmt.Sprintf("keys:\n  placement: %x\n  current: 1\n  cookie: {1: %x}\n", fleet.Keys.Placement, fleet.Keys.Cookie[1])
	ctl.must("key", "add")
	ctl.must("key", "use", "2")
	file := write(t, keys+fleetFile)
	shown, err := ctl.try("apply", "-f", file, "--dry-run")
	if !strings.Contains(shown, "WARNING: the key of epoch 2 is removed") {
		t.Errorf("dry run: %v, %q", err, shown)
	}
	ctl.refuse("apply --yes -f "+file, "--force-keys")
	ctl.expectEpochs(1, 2, 2)
	ctl.must("apply", "--yes", "--force-keys", "-f", file)
	ctl.expectEpochs(1, 1)
}
