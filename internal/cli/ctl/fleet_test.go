package ctl_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestMain(m *testing.M) { clitest.Main(m) }

const fleetFile = `services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    servers:
      - {name: s1, address: 10.0.0.1}
      - {name: s2, address: 10.0.0.2}
`

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// piped is a pipe, as a shell names it for <(...).
func piped(t *testing.T, text string) (path string) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	go func() {
		writer.WriteString(text)
		writer.Close()
	}()
	return fmt.Sprintf("/proc/self/fd/%d", reader.Fd())
}

// A terminal is a fleet, and ctl with the flags that reach it.
type terminal struct {
	t      *testing.T
	memory *apitest.Memory
	reach  []string
}

// byEveryWay runs a test over the local socket, and over TCP with certificates.
func byEveryWay(t *testing.T, test func(t *testing.T, ctl *terminal)) {
	t.Run("socket", func(t *testing.T) {
		memory := &apitest.Memory{}
		path := filepath.Join(t.TempDir(), "ctl.sock")
		serve(t, memory, listen(t, "unix", path))
		test(t, &terminal{t, memory, []string{"ctl", "--socket", path}})
	})
	t.Run("certificates", func(t *testing.T) {
		memory := &apitest.Memory{}
		dir := certificates(t)
		credentials, err := pki.Load(dir, "c1", pki.Controller)
		if err != nil {
			t.Fatal(err)
		}
		listener := listen(t, "tcp", "127.0.0.1:0")
		serve(t, memory, tls.NewListener(listener, credentials.Server()))
		test(t, &terminal{t, memory, []string{"ctl", "--controller", listener.Addr().String(), "--tls-dir", dir}})
	})
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func serve(t *testing.T, d api.Desired, listener net.Listener) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(api.NewFleetHandler(d))
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
}

func certificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := pki.Init(dir, pki.DefaultAuthorityLife, false); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]pki.Role{"c1": pki.Controller, "operator": pki.Ctl} {
		if err := pki.Issue(dir, pki.Request{Role: role, Name: name, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (ctl *terminal) try(arguments ...string) (output string, err error) {
	return clitest.Run(append(ctl.reach[:len(ctl.reach):len(ctl.reach)], arguments...)...)
}

func (ctl *terminal) must(arguments ...string) (output string) {
	ctl.t.Helper()
	output, err := ctl.try(arguments...)
	if err != nil {
		ctl.t.Fatalf("%v: %v: %s", arguments, err, output)
	}
	return output
}

// expect wants every part in the output of a command.
func (ctl *terminal) expect(command string, parts ...string) {
	ctl.t.Helper()
	output := ctl.must(strings.Fields(command)...)
	for _, part := range parts {
		if !strings.Contains(output, part) {
			ctl.t.Errorf("%s printed %q, without %q", command, output, part)
		}
	}
}

// refuse wants a command to fail and to say why.
func (ctl *terminal) refuse(command, why string) {
	ctl.t.Helper()
	output, err := ctl.try(strings.Fields(command)...)
	if err == nil || !strings.Contains(err.Error(), why) {
		ctl.t.Errorf("%s: %v, wanted a refusal that says %q; printed %q", command, err, why, output)
	}
}

// refuseWaiting is refuse of a command that gives up waiting, with a timeout that is long enough to find out what to say.
func (ctl *terminal) refuseWaiting(command, why string) {
	ctl.t.Helper()
	for timeout := 20 * time.Millisecond; timeout < 20*time.Second; timeout *= 4 {
		if _, err := ctl.try(strings.Fields(command + " --wait --timeout " + timeout.String())...); err != nil && strings.Contains(err.Error(), why) {
			return
		}
	}
	ctl.refuse(command+" --wait --timeout 20s", why)
}

func TestHistorySaysWhoChangedWhat(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.expect("--json history", "[]")
		ctl.memory.Past = []*ballastv1.FleetChange{{Time: timestamppb.New(time.Unix(1700000000, 0)), Name: "alice", Role: "ctl", Address: "192.0.2.1:4711",
			Changes: []string{"service web: removed", "service mail: removed"}}}
		ctl.expect("history", "alice (ctl)", "192.0.2.1:4711", "service web: removed", "service mail: removed")
		ctl.expect("--json history", `"name": "alice"`, `"changes": [`)
	})
}

func TestAFleetIsRunByCtl(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Live = func(id uint16) uint64 { return uint64(10 * id) }
		ctl.memory.Members = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb1", Version: "1.0", Revision: 3, Problems: []string{"eth0 is down"}}}
		ctl.expect("service add web --vip 198.51.100.10 --port 80 --check tcp", "service web: added")
		ctl.expect("server add web 10.0.0.1 --name s1", "server s1: added with address 10.0.0.1, id 1")
		ctl.expect("--json server add web 10.0.0.2 --name s2 --weight 2", `"id": 2`)
		ctl.expect("services -o wide", "web", "198.51.100.10", "second-chance", "tcp")
		ctl.expect("servers", "s1", "healthy", "10", "s2", "20")
		ctl.expect("server drain web s1 --deadline 1h", "state active -> draining", "deadline never -> ")
		ctl.expect("servers web", "draining until 20")
		ctl.expect("server undrain web s1", "state draining -> active")
		ctl.expect("server weight web s1 7", "weight 1 -> 7", "dispatch rr gives all servers above weight 0 the same: use wrr")
		ctl.expect("service set web --dispatch wrr", "dispatch rr -> wrr")
		ctl.expect("--json server weight web s1 8", "weight 7 -\\u003e 8\"\n  ]")
		ctl.expect("server remove web s2", "server s2: removed")
		ctl.expect("servers", "removed")
		ctl.expect("server forget web s2", "forgotten")
		ctl.expect("service set web --dispatch awfd --load-classes 8", "dispatch wrr -> awfd", "load.classes 4 -> 8")
		ctl.expect("key add", "added; once every node has it (ballast ctl key list): ballast ctl key use 2")
		ctl.expect("key use 2", "current 1 -> 2")
		ctl.expect("key drop 1", "epoch 1 removed")
		ctl.expect("keys", "epoch 2  current")
		ctl.expect("nodes -o wide", "lb1", "1.0", "eth0 is down")
		ctl.expect("fleet", "services:\n", "name: s1", "classes: 8")
		ctl.refuse("service remove web", "say --yes if that is meant")
		ctl.expect("service remove web --yes", "service web: removed")
		ctl.refuse("service remove web", `there is no service "web"`)
		ctl.refuse("server drain web s1", `there is no service "web"`)
		ctl.refuse("server weight web s1 900", "use 0 to 256")
		ctl.refuse("key use 9", "has no key")
	})
}

func TestALoadBalancerAddsWhatItCounted(t *testing.T) {
	memory := &apitest.Memory{Live: func(uint16) uint64 { return 5 }}
	web := model.Service{Name: "web"}
	web.ApplyDefaults()
	server := api.NewServer()
	server.HandleRaw(api.NewFleetHandler(memory))
	server.Handle("GET "+api.PathServices, func(*http.Request) (any, error) {
		return []api.ServiceStatus{{Service: web, Verdicts: map[string]api.Traffic{"forwarded_by_cookie": {Packets: 77}}, TimestampSearches: 13, PredecessorConnections: new(7), Servers: []api.ServerStatus{
			{Server: model.Server{Name: "s1", ID: 1}, Packets: 1234, Bytes: 5678, Connections: 42, Path: "if2 mtu 1500", TakesPart: true},
			{Server: model.Server{Name: "s2", ID: 2}, Path: "no neighbour"}}}}, nil
	})
	path := filepath.Join(t.TempDir(), "ctl.sock")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	listener := listen(t, "unix", path)
	go func() { done <- server.Serve(ctx, listener) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	ctl.expect("servers", "LIVE  NEW\n", "5     42\n", "active, no cookie")
	ctl.expect("servers -o wide", "NEW  ID  AGENT  PACKETS  BYTES  PATH", "42   1   -      1234     5678   if2 mtu 1500")
	ctl.expect("--json servers", `"packets": 1234`, `"connections": 5`)
	ctl.expect("--json services", `"forwarded_by_cookie"`, `"timestamp_searches": 13`)
	ctl.must("service", "set", "web", "--yes", "--predecessor-addresses", "10.0.0.8,10.0.0.9", "--predecessor-share", "10")
	ctl.expect("service show web", "10.0.0.8 10.0.0.9 by l2, share 10, 7 connections in a minute")
}

func TestEverythingIsThereAsJSON(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Members = []*ballastv1.NodeStatus{{Role: "controller", Name: "c1"}}
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		for command, wanted := range map[string]string{
			"services":               `[{"name":"web","vip":"198.51.100.10"`,
			"servers web":            `"address":"10.0.0.1","id":1,"weight":1,"state":"active","health":"healthy"`,
			"nodes":                  `[{"role":"controller","name":"c1"`,
			"keys":                   `{"epochs":[1],"current":1,"keys":[{"epoch":1,"connections":0}],"oldest_report_seconds":0}`,
			"fleet":                  `{"services":[{"name":"web"`,
			"server weight web s1 1": `{"changes":[]`,
			"apply --dry-run -f " + write(t, fleetFile): `"applied":false}`,
		} {
			var compact strings.Builder
			output := ctl.must(append([]string{"--json"}, strings.Fields(command)...)...)
			var value json.RawMessage
			if err := json.Unmarshal([]byte(output), &value); err != nil {
				t.Errorf("%s printed %q: %v", command, output, err)
			}
			for line := range strings.Lines(output) {
				compact.WriteString(strings.Replace(strings.TrimSpace(line), `": `, `":`, 1))
			}
			if !strings.Contains(compact.String(), wanted) {
				t.Errorf("%s printed %s, without %s", command, compact.String(), wanted)
			}
		}
	})
}

func TestApplyShowsWhatItDoesAndDoesWhatItShows(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		file := write(t, fleetFile)
		output, err := ctl.try("apply", "-f", file, "--dry-run")
		var status command.ExitStatus
		if !errors.As(err, &status) || status != 2 || !strings.Contains(output, "+ service web: added with 2 servers\n") {
			t.Errorf("dry run: %v, %q", err, output)
		}
		if _, err := ctl.try("apply", "-f", file); err == nil || !strings.Contains(err.Error(), "say --yes") {
			t.Errorf("nobody there to ask: %v", err)
		}
		ctl.expect("apply --yes -f "+file, "+ service web: added with 2 servers\n", "applied, revision 1")
		ctl.expect("apply --dry-run -f "+file, "no changes\n")
		ctl.expect("apply --dry-run -f "+piped(t, fleetFile), "no changes\n")
		ctl.expect("apply -f "+file, "no changes\n")
		ctl.must("server", "drain", "web", "s1")
		less := write(t, strings.Replace(fleetFile, "- {name: s2, address: 10.0.0.2}", "- {name: s3, address: 10.0.0.3}", 1))
		ctl.expect("apply --yes -f "+less, "- service web: server s2: removed\n", "+ service web: server s3: added with address 10.0.0.3, id 3, weight 1, active\n",
			"kept, as it was set: service web: server s1: state active -> draining\n", "applied, revision")
		draining := write(t, strings.NewReplacer("- {name: s2, address: 10.0.0.2}", "- {name: s3, address: 10.0.0.3}", "{name: s1,", "{name: s1, state: draining,").Replace(fleetFile))
		ctl.expect("apply -f "+draining, "no changes\n") // and yet it is what was applied last
		ctl.expect("apply --yes -f "+less, "~ service web: server s1: state draining -> active\n")
		ctl.refuse("apply -f "+write(t, "services: []"), "say --yes")
		ctl.expect("apply --yes -f "+write(t, "services: []"), "- service web: removed\n")
	})
}

func TestWhatCtlPrintsCanBeApplied(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		printed := ctl.must("fleet")
		if strings.Contains(printed, "keys") {
			t.Errorf("the keys are in it: %s", printed)
		}
		ctl.expect("apply --dry-run -f "+write(t, printed), "no changes")
	})
}

func TestObjectionsToAFileNameTheLine(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		file := write(t, strings.Replace(fleetFile, "10.0.0.2", "10.0.0.1", 1))
		ctl.refuse("apply --yes -f "+file, file+":7: services[0].servers[1].address: 10.0.0.1 is also the address of server s1")
		file = write(t, strings.Replace(fleetFile, "vip", "vpi", 1))
		ctl.refuse("apply --yes -f "+file, file+":3: services[0].vpi: unknown key")
	})
}

const keysOfFile = "keys:\n  placement: 000102030405060708090a0b0c0d0e0f\n  current: 1\n  cookie: {1: 00112233445566778899aabbccddeeff}\n"

func TestAFleetWithAnotherPlacementKeyIsRefused(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		ctl.refuse("apply --yes -f "+write(t, keysOfFile+fleetFile), ":2: keys.placement: it has changed")
	})
}

func TestDrainWaitsUntilNothingIsLeft(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		var left atomic.Int64
		left.Store(2)
		ctl.memory.Live = func(uint16) uint64 { return uint64(max(left.Add(-1), 0)) }
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		ctl.expect("server drain web s1 --wait", "state active -> draining", "1 connection remains\n", "0 connections remain\n", "server s1 is drained")
		ctl.expect("--json server drain web s1 --wait", `"connections": 0`, `"connections_exact": true`)
	})
}

// What an agent has reported may be a second old: a server that got its first connection in that time is not drained.
func TestACountOfNothingMustHold(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		var looks atomic.Int64
		ctl.memory.Live = func(id uint16) uint64 {
			if id == 1 && looks.Add(1) == 2 {
				return 1
			}
			return 0
		}
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		ctl.expect("server drain web s1 --wait", "0 connections remain\n1 connection remains\n0 connections remain\n", "is drained: no connection is left\n")
		if looks.Load() != 8 { // the two, and six more
			t.Errorf("%d looks", looks.Load())
		}
	})
}

// Promise: A drain goes on when the operator of `drain --wait` disconnects.
func TestDrainGoesOnWhenTheWaitingEnds(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Live = func(uint16) uint64 { return 5 }
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		ctl.refuseWaiting("server drain web s1",
			"5 connections remain: server s1 of web goes on draining: undo it with `ballast ctl server undrain web s1`")
		ctl.expect("fleet", "state: draining")
		ctl.refuse("server drain web s1 --timeout 1s", "give both")
	})
}

func TestDrainStopsWaitingWhenSomebodyElseUndoesIt(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		looks := 0
		ctl.memory.Live = func(uint16) uint64 {
			if looks++; looks == 1 {
				go ctl.try("server", "undrain", "web", "s1")
			}
			return 1
		}
		ctl.refuse("server drain web s1 --wait --timeout 10s", "is active again: another request has changed it")
	})
}

// A load balancer that has started anew, or did not get a connection's SYN, forwards what it does not count.
//
// Promise: Without agents' reports, `drain --wait` ends after 12 s with an estimate of 0 and no packet, though
// idle connections may live; what nobody reports does not end it.
// Also held by TestPacketsOfConnectionsThatBeganElsewhereAreToldOf,
// TestIdleConnectionsAreLeftWithEveryPolicyAndWhatNobodyReportsIsNotKnown and
// TestADrainDoesNotEndByWhatNobodyReports.
func TestAnEstimateOfNothingMustHoldAndNoPacketCome(t *testing.T) {
	var looks atomic.Int64
	memory := &apitest.Memory{Estimated: true, KeysFromFile: true, Live: func(id uint16) uint64 {
		if id == 1 && looks.Add(1) == 2 {
			return 1 // after a 0 that was none
		}
		return 0
	}}
	memory.Activity = func() uint64 { return uint64(min(looks.Load(), 5)) }
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, keysOfFile+fleetFile))
	ctl.expect("server drain web s1 --wait",
		"about 0 connections remain\nabout 1 connection remains\nconnections remain that began elsewhere: packets of them come\nabout 0 connections remain\n",
		"is drained: no connection that this load balancer has seen is left: ask the others, too; `ballast ctl status` on the server counts those that carry cookies\n")
	if looks.Load() != 29 { // the five, and as many as a report of everything may take
		t.Errorf("%d looks", looks.Load())
	}
	memory.Set(func() { memory.Estimated = false }) // an agent counts all there are
	ctl.expect("server drain web s1 --wait", "is drained: no connection is left\n")
	ctl.expect("--json server drain web s1 --wait", `"one_node": true`)
}

func TestADrainDoesNotEndByWhatNobodyReports(t *testing.T) {
	memory := &apitest.Memory{Estimated: true} // as when an agent has fallen silent, and no load balancer has reported
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	ctl.refuse("server drain web s1 --wait --timeout 5s", "it is not known how many connections remain")
	ctl.expect("--json servers", `"connections": null`)
}

func TestNobodyWaitsForWhatIsNotCounted(t *testing.T) {
	memory := &apitest.Memory{Estimated: true}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, strings.Replace(fleetFile, "ports: [80]", "ports: [53]\n    protocol: udp", 1)))
	ctl.refuse("server drain web s1 --wait", "give --deadline or --timeout")
	ctl.expect("fleet", "state: active")
	ctl.refuseWaiting("server drain web s1", "it is not known how many connections remain")
	ctl.expect("--json servers", `"connections": null`)
	memory.Set(func() { memory.Estimated = false })
	ctl.expect("server drain web s1 --wait", "is drained")
}

func TestControllersAreAskedOnlyWithACertificateForIt(t *testing.T) {
	dir := certificates(t)
	for arguments, want := range map[string]string{
		"--controller c1 --tls-dir /nonexistent services":              "ballast ctl pki issue",
		"--controller c1 --tls-dir " + dir + " --tls-name c1 services": "role controller",
		"--controller c1 --tls-dir " + dir + " --socket x services":    "give one of them",
		"--controller c1 --tls-dir " + dir + " status":                 "of one node only",
		"--controller c1 --tls-dir " + dir + " config diff":            "of one node only",
		"--controller 127.0.0.1:1 --tls-dir " + dir + " services":      "reach a controller of 127.0.0.1:1",
	} {
		_, err := clitest.Run(append([]string{"ctl"}, strings.Fields(arguments)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted a refusal that says %q", arguments, err, want)
		}
	}
}

func TestInterruptEndsTheWaitingNotTheDraining(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	ctx, interrupt := context.WithCancel(t.Context())
	memory.Live = func(uint16) uint64 { interrupt(); return 3 }
	root := cli.Root("test")
	var output strings.Builder
	root.SetOut(&output)
	root.SetErr(&output)
	root.SetArgs([]string{"ctl", "--socket", path, "server", "drain", "web", "s1", "--wait"})
	// It would wait for ever: there are connections always.
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "goes on draining") {
		t.Errorf("interrupted: %v", err)
	}
	ctl.expect("fleet", "state: draining")
}

// Promise: `server list` shows the part of its weight that a server has in slow_start, and until when it starts.
func TestServersThatStartAreListedWithTheirPart(t *testing.T) {
	memory := &apitest.Memory{Starting: map[string]*ballastv1.ServerStatus{"s1": {SlowStart: 0.3, WholeAt: timestamppb.New(time.Date(2026, 12, 1, 8, 0, 30, 0, time.UTC))}}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	ctl.expect("server list web", "active, starts: 30 % until 2026-12-01T08:00:30Z ")
	ctl.expect("server show web s1", "starts: 30 %")
	ctl.expect("-o json server list web", `"slow_start": {`, `"part": 0.3,`, `"until": "2026-12-01T08:00:30Z"`)
	memory.Set(func() { memory.Starting = nil })
	if out := ctl.must("-o", "json", "server", "list"); strings.Contains(out, "slow_start\": {") {
		t.Errorf("nobody starts, but %s", out)
	}
}
