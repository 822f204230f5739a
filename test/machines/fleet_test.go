// Package machines follows documents on Debian systems with systemd, as their readers do.
package machines

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	boots   = 10 * time.Minute // with Debian to be fetched
	answers = 5 * time.Minute
)

// block is a part of a document: commands, and the machines whose reader types them.
type block struct {
	machines  []string
	meanwhile bool // what follows does not wait for it
	commands  string
}

var (
	blocks = regexp.MustCompile("(?ms)^```\n# ([a-z0-9 ]+?)(, meanwhile)?\n(.*?)^```$")
	// what a reader does who waits for the routes
	untilTwoPaths = "for i in $(seq 300); do [[ $(ip route show 198.51.100.10 | grep -c nexthop) != 2 ]] || break; sleep 0.1; done\n"
)

func read(t *testing.T, document string) []block {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	for _, found := range blocks.FindAllStringSubmatch(string(text), -1) {
		all = append(all, block{machines: strings.Fields(found[1]), meanwhile: found[2] != "", commands: found[3]})
	}
	if marks := strings.Count(string(text), "\n```"); marks != 2*len(all) {
		t.Fatalf("%d blocks of %d name their machines in their first line", len(all), marks/2)
	}
	return all
}

func machines(t *testing.T, ctx context.Context, arguments ...string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(ctx, "./machines", arguments...).CombinedOutput()
	return string(output), err
}

// Promise: who types docs/first-fleet.md on Debian has a fleet that loses nothing.
func TestTheFirstFleetIsAsTheDocumentSays(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("boots seven machines from packages: make test-packages")
	}
	packages, err := filepath.Glob("../../bin/packages/ballast_*_amd64.deb")
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages: %v (%v), want one: make packages", packages, err)
	}
	up, cancel := context.WithTimeout(t.Context(), boots)
	defer cancel()
	if output, err := machines(t, up, "up", packages[0]); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	t.Cleanup(func() {
		if output, err := machines(t, context.Background(), "down"); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
	var (
		said = map[string]string{}
		lock sync.Mutex
		wait sync.WaitGroup
	)
	run := func(machine, commands string) {
		ctx, cancel := context.WithTimeout(t.Context(), answers)
		defer cancel()
		output, err := machines(t, ctx, "run", machine, "set -e\n"+commands)
		lock.Lock()
		defer lock.Unlock()
		t.Logf("%s:\n%s%s", machine, commands, output)
		said[machine] += output
		if err != nil {
			t.Errorf("%s: %v", machine, err)
		}
	}
	for _, block := range read(t, "../../docs/first-fleet.md") {
		if strings.Contains(block.commands, "ip route show") { // a reader looks until it is there
			block.commands = untilTwoPaths + block.commands
		}
		for _, machine := range block.machines {
			if block.meanwhile {
				wait.Go(func() { run(machine, block.commands) })
			} else {
				run(machine, block.commands)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	wait.Wait()
	if complete := strings.Count(said["client"], "200 104857600\n"); complete != 8 {
		t.Errorf("%d of 8 downloads are complete", complete)
	}
	for _, server := range []string{"s1\n", "s2\n"} {
		if !strings.Contains(said["client"], server) {
			t.Errorf("the client had no answer of %s", server)
		}
	}
	if !strings.Contains(said["lb1"], "\n0 problems") {
		t.Errorf("doctor on lb1: %s", said["lb1"])
	}
}
