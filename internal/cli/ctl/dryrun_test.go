package ctl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Verbs that change nothing of a fleet or daemon: they read, or write files of whoever calls them.
var (
	reading = []string{"list", "show", "diff", "explain", "status", "metrics", "trace", "generate", "services", "servers", "nodes", "replicas", "keys", "tickets", "sessions", "connections",
		"counters", "suspects", "history", "fleet"}
	ofFiles = []string{"backup", "pki init", "pki issue", "context use", "context set", "context delete", "quic config"}
	short   = []string{"node invite", "connections suspect", "connections clear", "counters reset"} // of verbs that are there in full
)

// verbs are changes, in an order in which each has something to change. In them FILE, LESS and CA stand for paths, INVITED for an invitation.
var verbs = []string{
	"apply -f FILE", "service add dns --vip 198.51.100.53 --port 53 --protocol udp", "service set web --dispatch wrr", "server add web 10.0.0.3",
	"server weight web s1 5", "server drain web s1 --deadline 10m", "server undrain web s1", "server remove web s2", "server forget web s2",
	"node add lb1 --tier first", "node add lb2 --tier second --address 10.0.0.9", "node health --check tcp --check-port 9", "node drain lb2", "node undrain lb2",
	"replica set --chain 3 --idle-timeout 10m", "key add", "key use 2 --force", "key use 1 --force", "key drop 2 --force", "pki delegate CA", "invite add lb", "invite revoke INVITED",
	"pki revoke --role lb lb9", "node remove lb1", "service remove dns", "apply -f LESS", "fleet rollback FIRST",
}

// verbsOfMemory are those that need more than one controller can have in a test, on a fleet in memory. What controllers do is in their own tests.
var verbsOfMemory = []string{"key rotate", "ticket use --force", "ticket revoke", "replica drain lb1", "replica undrain lb1", "node forget lb7"}

// verbsOfDaemons change what one daemon does.
var verbsOfDaemons = []string{"config reload", "config reset", "counter reset", "suspect add --service web --client 192.0.2.1", "suspect remove --service web --client 192.0.2.1"}

// elsewhere are those whose dry run is looked at where there is what they change: internal/controller.
var elsewhere = []string{"controller remove"}

// Promise: Every command of ctl that changes something has --dry-run, which changes nothing.
func TestEveryVerbThatChangesSomethingHasADryRun(t *testing.T) {
	var has []string
	below(cli.Root("test"), func(cmd *cobra.Command) {
		path, ok := strings.CutPrefix(cmd.CommandPath(), "ballast ctl ")
		words := strings.Fields(path)
		if !ok || !cmd.Runnable() || cmd.HasAvailableSubCommands() && !strings.HasPrefix(cmd.Use, "list") || slices.Contains(reading, words[len(words)-1]) || slices.Contains(ofFiles, path) {
			return
		}
		if cmd.Flags().Lookup("dry-run") == nil {
			t.Errorf("%s changes something and has no --dry-run", cmd.CommandPath())
		}
		if !slices.Contains(short, path) {
			has = append(has, path)
		}
	})
	for _, path := range has {
		if !slices.ContainsFunc(slices.Concat(verbs, verbsOfMemory, verbsOfDaemons, elsewhere), func(line string) bool { return line == path || strings.HasPrefix(line, path+" ") }) {
			t.Errorf("ballast ctl %s is tried by no test", path)
		}
	}
}

// state is all that ctl tells of a fleet.
func (ctl *terminal) state(asked ...string) string {
	ctl.t.Helper()
	var all strings.Builder
	for _, line := range asked {
		all.WriteString(ctl.must(append(strings.Fields(line), "-o", "json")...))
	}
	return all.String()
}

// first is a field of the first that a command lists; empty: it lists nothing.
func (ctl *terminal) first(command, field string) string {
	ctl.t.Helper()
	list := read(ctl.t, json.Unmarshal, ctl.state(command)).([]any)
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprint(list[0].(map[string]any)[field])
}

// changesNothing runs a verb dry, and then in earnest: the first changes nothing, and the second something.
func (ctl *terminal) changesNothing(line string, asked ...string) {
	ctl.t.Helper()
	before := ctl.state(asked...)
	words := strings.Fields(line)
	said, err := ctl.try(append(words[:len(words):len(words)], "--dry-run")...)
	if !errors.Is(err, ask.ChangesWouldBeMade) {
		ctl.t.Errorf("%s --dry-run: %v, not that something would change: %s", line, err, said)
	}
	if after := ctl.state(asked...); after != before {
		ctl.t.Errorf("%s --dry-run has changed\n%s to\n%s", line, before, after)
	}
	root := cli.Root("test")
	if cmd, _, _ := root.Find(append([]string{"ctl"}, words...)); cmd.Flags().Lookup("yes") != nil {
		words = append(words, "--yes")
	}
	ctl.must(words...)
	if ctl.state(asked...) == before {
		ctl.t.Errorf("%s changes nothing: the test of its dry run is worth nothing", line)
	}
}

func TestADryRunChangesNothingOfAFleet(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	ca.Issue(pki.Controller, "c1", "127.0.0.1")
	ctx, cancel := context.WithCancel(context.Background())
	dir, ended, ready := t.TempDir(), make(chan error, 1), make(chan struct{})
	o := controller.Options{Name: "c1", Listen: "127.0.0.1:0", DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), TLSDir: ca.Dir, Timing: fleet.DefaultTiming,
		Version: "1", Log: fleettest.Log(t), Ready: func(string) { close(ready) }}
	go func() { ended <- controller.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		fleettest.Require(t, <-ended)
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	ctl := &terminal{t, nil, []string{"ctl", "--run-dir", o.RunDir, "--instance", "c1"}}
	fleettest.Await(t, "the controller knows its store", func() bool { _, err := ctl.try("fleet", "show"); return err == nil })
	replace := strings.NewReplacer("FILE", write(t, fleetFile), "LESS", write(t, strings.Replace(fleetFile, "10.0.0.2", "10.0.0.4", 1)), "CA", ca.Dir)
	asked := []string{"fleet show", "history list", "key list", "ticket list", "pki list", "invite list", "controller list", "replica list"}
	for _, line := range verbs {
		line = replace.Replace(line)
		line = strings.ReplaceAll(line, "INVITED", ctl.first("invite list", "id"))
		ctl.changesNothing(strings.ReplaceAll(line, "FIRST", ctl.first("history list", "revision")), asked...)
	}
}

func TestADryRunTellsWhatItDoesToConnections(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Live = func(id uint16) uint64 { return uint64(id) * 10 }
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		for line, want := range map[string][]string{
			"server drain web s1":                               {"~ service web: server s1: state active -> draining\n", "live: service web: server s1: 10 connections stay until they end\n"},
			"server drain web s2 --deadline 1h":                 {"live: service web: server s2: 20 connections stay until they end; at 20", " the rest is cut"},
			"server remove web s2":                              {"- service web: server s2: removed\n", "live: service web: server s2: 20 connections stay until they end\n"},
			"service remove web":                                {"- service web: removed\n", "live: service web: 30 connections end\n", "WARNING: service web: it goes"},
			"service set web --affinity hash --dispatch maglev": {"live: service web: 30 connections: see the warnings\n", "affinity cookie -> hash: of 30 connections all break: only those are found"},
			"server weight web s1 9":                            {"~ service web: server s1: weight 1 -> 9\n"},
			"apply -f " + write(t, "services: []\n"):            {"live: service web: 30 connections end\n"},
		} {
			said, err := ctl.try(append(strings.Fields(line), "--dry-run")...)
			if !errors.Is(err, ask.ChangesWouldBeMade) {
				t.Errorf("%s: %v", line, err)
			}
			for _, part := range want {
				if !strings.Contains(said, part) {
					t.Errorf("%s says %q, which lacks %q", line, said, part)
				}
			}
		}
		if said := ctl.must("server", "weight", "web", "s1", "1", "--dry-run"); said != "no changes\n" {
			t.Errorf("what is so already: %q", said)
		}
		said, err := ctl.try("server", "remove", "web", "s2", "--dry-run", "-o", "json")
		if !errors.Is(err, ask.ChangesWouldBeMade) || !strings.Contains(said, `"dry_run": true`) || !strings.Contains(said, `"live": [`) {
			t.Errorf("for programs: %v: %s", err, said)
		}
		ctl.memory.Live, ctl.memory.Estimated = nil, true
		if said, _ := ctl.try("server", "remove", "web", "s2", "--dry-run"); !strings.Contains(said, "connections that nobody counts") {
			t.Errorf("without counts: %q", said)
		}
	})
}

func TestADryRunOfWhatMemoryHas(t *testing.T) {
	memory := &apitest.Memory{
		Members: []*ballastv1.NodeStatus{{Role: "lb", Name: "lb7", Ready: "lost"}},
		Ring:    &ballastv1.ListReplicasResponse{Needed: true, Nodes: []*ballastv1.ReplicaStatus{{Name: "lb1", State: "on"}}},
	}
	at := timestamppb.Now()
	memory.Tickets.Needed, memory.Tickets.Current = true, 2
	memory.Tickets.Keys = []*ballastv1.TicketKeyStatus{{Epoch: 2, Made: at}, {Epoch: 3, Made: at}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	for _, line := range verbsOfMemory {
		ctl.changesNothing(line, "key list", "ticket list", "replica list", "node list")
	}
}

// Promise: A daemon or controller of a version that does not know dry runs refuses one, instead of carrying the change out.
func TestADryRunReachesNothingThatCarriesItOut(t *testing.T) {
	server, ran := api.NewServer(), []string{}
	server.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return api.Status{}, nil })
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		for _, path := range []string{api.PathConfigAction, api.PathSuspects, api.PathCounters} {
			server.Handle(method+" "+path, func(r *http.Request) (any, error) {
				ran = append(ran, r.Method+" "+r.URL.Path)
				return api.Changed{Changes: []string{"done"}}, nil
			})
		}
	}
	server.HandleRaw("/ballast.v1.Fleet/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if kind := r.Header.Get("Content-Type"); kind != "application/json" { // which is read strictly
			ran = append(ran, r.URL.Path+" as "+kind)
		}
		http.Error(w, "{}", http.StatusBadRequest)
	}))
	server.Otherwise("it does not know that command: it is of another version")
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serving := &http.Server{Handler: server}
	go serving.Serve(listen(t, "unix", path))
	t.Cleanup(func() { serving.Close() })
	ctl := &terminal{t, nil, []string{"ctl", "--socket", path}}
	for _, line := range slices.Concat(verbsOfDaemons, []string{"server add web 10.0.0.3", "key add", "node drain lb1", "pki revoke lb9"}) {
		words := strings.Fields(line)
		if said, err := ctl.try(append(words[:len(words):len(words)], "--dry-run")...); err == nil || errors.Is(err, ask.ChangesWouldBeMade) {
			t.Errorf("%s --dry-run of one that does not know it: %v: %s", line, err, said)
		}
		if len(ran) > 0 {
			t.Errorf("%s --dry-run: %s", line, ran)
		}
	}
	for _, line := range verbsOfDaemons {
		ctl.must(strings.Fields(line)...)
	}
	if len(ran) != len(verbsOfDaemons) {
		t.Errorf("in earnest: %s", ran)
	}
}

func TestAFileThatIsCutOffIsNotApplied(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Live = func(uint16) uint64 { return 10 }
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		empty, half := write(t, "services: []\n"), write(t, fleetFile[:strings.LastIndex(fleetFile, "      - ")])
		ctl.refuse("apply --yes -f "+empty, "whole? service web goes, with 20 connections: if that is meant, say --allow-remove")
		ctl.refuse("apply --yes -f "+half, "whole? service web: 1 of its 2 servers that take new connections go: if that is meant, say --allow-remove")
		said, err := ctl.try("apply", "--dry-run", "-o", "json", "-f", half)
		if !errors.Is(err, ask.ChangesWouldBeMade) || !strings.Contains(said, `"removals": [`) {
			t.Errorf("the dry run: %v: %s", err, said)
		}
		ctl.expect("fleet diff 1", "no changes")
		ctl.expect("apply --yes --allow-remove -f "+half, "- service web: server s2: removed\n", "applied, revision 2")
		ctl.expect("fleet rollback 1 --yes", "server s2: added")
		ctl.expect("fleet rollback 2 --yes", "server s2: removed") // by its number: it is no file
		ctl.expect("apply --yes --allow-remove -f "+empty, "- service web: removed\n")
	})
}
