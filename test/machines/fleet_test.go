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
	// what a reader does who waits for both routes
	untilTwoPaths = "for i in $(seq 300); do [[ $(ip route show 198.51.100.10 | grep -c nexthop) != 2 ]] || break; sleep 0.1; done\n"
)

// block is a part of a document: commands, and the machines whose reader types them.
type block struct {
	section   string
	machines  []string
	meanwhile bool // what follows does not wait for it
	commands  string
}

var blocks = regexp.MustCompile("(?ms)^## (.*?)$|^```\n# ([a-z0-9 ]+?)(, meanwhile)?\n(.*?)^```$")

func read(t *testing.T, document string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	section := ""
	for _, found := range blocks.FindAllStringSubmatch(string(text), -1) {
		if found[1] != "" {
			section = found[1]
			continue
		}
		all = append(all, block{section: section, machines: strings.Fields(found[2]), meanwhile: found[3] != "", commands: found[4]})
	}
	if marks := strings.Count(string(text), "\n```"); marks != 2*len(all) {
		t.Fatalf("%d blocks of %d name their machines in their first line", len(all), marks/2)
	}
	return all
}

// reader types commands on machines.
type reader struct {
	*testing.T
	lock      sync.Mutex
	said      map[string]string // by machine
	meanwhile sync.WaitGroup
}

// fleet are the machines of docs/start/first-fleet.md.
const fleet = "router c1 lb1 lb2 s1 s2 client"

// boot boots machines that have these files, until the test ends.
func boot(t *testing.T, machines string, files ...string) *reader {
	t.Helper()
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("boots machines from packages: make test-packages")
	}
	t.Setenv("MACHINES", machines)
	ctx, cancel := context.WithTimeout(t.Context(), boots)
	defer cancel()
	t.Cleanup(func() {
		if output, err := exec.Command("./machines", "down").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
	if output, err := exec.CommandContext(ctx, "./machines", append([]string{"up"}, files...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return &reader{T: t, said: map[string]string{}}
}

// on types commands on a machine, and returns what they print.
func (r *reader) on(machine, commands string) string {
	ctx, cancel := context.WithTimeout(r.Context(), answers)
	defer cancel()
	output, err := exec.CommandContext(ctx, "./machines", "run", machine, "set -e\n"+commands).CombinedOutput()
	r.lock.Lock()
	defer r.lock.Unlock()
	r.said[machine] += string(output)
	if err != nil {
		r.Errorf("%s: %v:\n%s%s", machine, err, commands, output)
	}
	return string(output)
}

// follow types a block, and ends the test where that fails.
func (r *reader) follow(b block) {
	commands := b.commands
	if strings.Contains(commands, "ip route show") {
		commands = untilTwoPaths + commands
	}
	for _, machine := range b.machines {
		if b.meanwhile {
			r.meanwhile.Go(func() { r.on(machine, commands) })
		} else {
			r.on(machine, commands)
		}
	}
	if r.Failed() {
		r.FailNow()
	}
}

// packaged is the package that `make packages` made for this machine.
func packaged(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("../../bin/packages/ballast_*_amd64.deb")
	if err != nil || len(found) != 1 {
		t.Fatalf("packages: %v (%v), want one: make packages", found, err)
	}
	return found[0]
}

// Promise: Following docs/start/first-fleet.md on Debian gives a fleet that loses nothing.
func TestTheFirstFleetIsAsTheDocumentSays(t *testing.T) {
	r := boot(t, fleet, packaged(t))
	for _, block := range read(t, "../../docs/start/first-fleet.md") {
		r.follow(block)
	}
	r.meanwhile.Wait()
	if complete := strings.Count(r.said["client"], "200 104857600\n"); complete != 8 {
		t.Errorf("%d of 8 downloads are complete: %s", complete, r.said["client"])
	}
	for _, server := range []string{"s1\n", "s2\n"} {
		if !strings.Contains(r.said["client"], server) {
			t.Errorf("the client had no answer of %s", server)
		}
	}
	if !strings.Contains(r.said["lb1"], "\n0 problems") {
		t.Errorf("doctor on lb1: %s", r.said["lb1"])
	}
}
