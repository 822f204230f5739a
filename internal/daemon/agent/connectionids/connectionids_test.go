package connectionids

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/internal/daemon/agent/appfiles"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	ids "github.com/ballast-lb/ballast/pkg/quiclb"
)

func quicService(t *testing.T, id uint16) (*model.Keys, []plan.AgentService) {
	t.Helper()
	s := model.NewService()
	s.Name, s.Protocol, s.Affinity, s.Ports = "web", model.ProtocolUDP, model.AffinityQUIC, []uint16{443}
	s.Servers = []model.Server{{Name: "s1", ID: id, Weight: 1}}
	s.ApplyDefaults()
	keys := &model.Keys{Placement: [16]byte{1}, Current: 8, Cookie: map[uint32][16]byte{8: {2}, 9: {3}}}
	return keys, []plan.AgentService{{Service: &s, Server: &s.Servers[0]}}
}

// set returns what Files does not write.
func set(c *appfiles.Files, keys *model.Keys, services []plan.AgentService) error {
	if c.Set(keys, services); len(c.Unwritten) > 0 {
		return errors.New(strings.Join(c.Unwritten, "\n"))
	}
	return nil
}

func TestApplicationsFindTheirServersIDInAFile(t *testing.T) {
	c := &appfiles.Files{Of: file, Dir: filepath.Join(t.TempDir(), "quic", "default"), Log: slog.New(slog.DiscardHandler)}
	keys, services := quicService(t, 0x0102)
	check := func(config uint8) *ids.Generator {
		t.Helper()
		if err := set(c, keys, services); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(c.Dir, "web.json")
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		generator, err := ids.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		id, err := generator.New()
		if err != nil {
			t.Fatal(err)
		}
		reads := quiclb.Config{ID: config, Key: plan.ConnectionIDKey(keys.Cookie[keys.Current], services[0].Service.VIP), ServerIDLength: 2, NonceLength: 14}
		if server, err := reads.Decode(id); err != nil || string(server) != "\x01\x02" {
			t.Fatalf("%x names %x, %v", id, server, err)
		}
		return generator
	}
	before := check(1)
	keys.Current = 9
	after := check(2)
	if before.StatelessResetKey() != after.StatelessResetKey() || before.TokenKey() != after.TokenKey() {
		t.Error("keys that are not of ids follow the epoch: applications would have to start again")
	}
	services[0].Server.ID = 3
	file := fileOf(keys, services[0].Service, services[0].Server)
	if [32]byte(file.ResetKey) == before.StatelessResetKey() {
		t.Error("two servers share a key of stateless resets")
	}
}

// To one of them somebody could send an id of the other, and would be told how to end its connection.
//
// Promise: Services of one VIP have different stateless reset keys.
func TestServicesOfOneVIPShareNoResets(t *testing.T) {
	keys, services := quicService(t, 1)
	one := fileOf(keys, services[0].Service, services[0].Server)
	services[0].Service.Name, services[0].Service.Ports = "other", []uint16{8443}
	other := fileOf(keys, services[0].Service, services[0].Server)
	if bytes.Equal(one.ResetKey, other.ResetKey) || bytes.Equal(one.TokenKey, other.TokenKey) {
		t.Error("two services share keys")
	}
	if !bytes.Equal(one.Key, other.Key) {
		t.Error("ids change with the service's name: to rename it would break its connections")
	}
}

func TestFilesOfServicesThatAreGoneAreRemoved(t *testing.T) {
	c := &appfiles.Files{Of: file, Dir: filepath.Join(t.TempDir(), "quic"), Log: slog.New(slog.DiscardHandler)}
	keys, services := quicService(t, 1)
	if err := set(c, keys, nil); err != nil { // there is no directory yet
		t.Fatal(err)
	}
	for range 2 {
		if err := set(c, keys, services); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(c, keys, nil); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(c.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// Who may write there is root, but a link that somebody left is no file of ours.
func TestAFileIsReplacedNotWrittenThrough(t *testing.T) {
	c := &appfiles.Files{Of: file, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	other := filepath.Join(t.TempDir(), "other")
	for _, name := range []string{"web.json", "web.json.new"} {
		if err := os.Symlink(other, filepath.Join(c.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	keys, services := quicService(t, 1)
	if err := set(c, keys, services); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("wrote through a link: %v", err)
	}
}

// Promise: An agent that cannot write the file with QUIC keys reports a problem and tries again every second, and
// carries out the rest of the change.
func TestFilesThatCannotBeWrittenAreAProblemAndTriedAgain(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "quic")
	if err := os.WriteFile(parent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &appfiles.Files{Of: file, Dir: filepath.Join(parent, "default"), Log: slog.New(slog.DiscardHandler)}
	c.Set(quicService(t, 1))
	if len(c.Unwritten) == 0 || !strings.Contains(c.Unwritten[0], parent) {
		t.Errorf("problems %q", c.Unwritten)
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	c.Retry()
	if _, err := os.Stat(filepath.Join(c.Dir, "web.json")); err != nil || len(c.Unwritten) != 0 {
		t.Errorf("%v, problems %q", err, c.Unwritten)
	}
}

func TestTheGroupMayReadTheFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, err := New(t.TempDir(), "default", "daemon", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	keys, services := quicService(t, 1)
	if err := set(c, keys, services); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(c.Dir, "web.json")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := New(t.TempDir(), "default", "no such group", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a group that does not exist was taken")
	}
}

// A thread has capabilities of its own, and ends with the goroutine that has locked it.
func TestTheCapabilitiesOfTheUnitAreEnoughForTheFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	unit, err := os.ReadFile("../../../../deploy/systemd/ballast-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	line, _, _ = strings.Cut(line, "\n")
	numbers := map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_BPF": unix.CAP_BPF,
		"CAP_PERFMON": unix.CAP_PERFMON, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_CHOWN": unix.CAP_CHOWN}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had, sets [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(line) {
		number, known := numbers[name]
		if !known {
			t.Fatalf("which capability is %s?", name)
		}
		sets[number/32].Effective |= had[number/32].Permitted & (1 << (number % 32))
		sets[number/32].Permitted = sets[number/32].Effective
	}
	c, err := New(t.TempDir(), "default", "daemon", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	keys, services := quicService(t, 1)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Capset(&header, &sets[0]); err != nil {
			done <- err
			return
		}
		done <- set(c, keys, services)
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
