package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/daemon/lb"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/plan"
)

func init() {
	dir := os.Getenv(daemonDir)
	role := os.Getenv(daemonProcess)
	name, isLB := map[string]string{"lb": "", "remote-lb": "lb1", "remote-lb6": "lb1", "first-lb": "lb1", "second-lb": "lb2", "greedy-lb": "", "wide-lb": "", "lost-lb": "", "generic-lb": "", "bgp-lb": "lb1", "heard-lb": "lb1", "l2-lb1": "lb1", "l2-lb2": "lb2"}[role]
	if !isLB {
		return
	}
	limits := plan.DefaultLimits
	limits.Slots = 1 << 16
	options := lb.Options{
		Config: filepath.Join(dir, "ballast.yaml"), Instance: "test", RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"),
		Name: name, Interfaces: []string{"eth0"}, XDPMode: attach.XDPAuto, Limits: limits, Timing: fleet.DefaultTiming, Metrics: "10.9.0.1:9435", Console: "127.0.0.1:9440", FlowLog: filepath.Join(dir, "flows.json"),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if role == "greedy-lb" {
		options.Interfaces, options.XDPMode = []string{"eth0", "lo"}, attach.XDPNative
	}
	if role == "generic-lb" {
		options.XDPMode = attach.XDPGeneric
	}
	if role == "wide-lb" {
		options.Interfaces = []string{"eth0", "lo"}
	}
	if strings.HasPrefix(role, "l2-") {
		options.Metrics = ""
	}
	if role == "heard-lb" {
		options.Listen, options.TLSDir = "10.9.0.1:6443", filepath.Join(dir, "tls")
	}
	if role == "lost-lb" {
		options.Interfaces = []string{"lo"}
	}
	if role == "remote-lb6" {
		options.PeerAddress = "fd09::1"
	}
	if strings.HasPrefix(role, "remote-lb") {
		options.Config, options.Controllers, options.TLSDir = "", remoteControllers, filepath.Join(dir, "tls")
	}
	fmt.Fprintln(os.Stderr, "lb:", lb.Run(context.Background(), options))
	os.Exit(1)
}

const lbFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], servers: [
      {name: s1, address: 10.9.0.2, id: 1}, {name: s2, address: 10.9.0.3, id: 2}%s]}
`

// lbHost is a load balancer whose peer is all servers.
type lbHost struct{ *host }

func newLBHost(t *testing.T) *lbHost {
	t.Helper()
	return &lbHost{newHost(t, "lb", []string{"10.9.0.1/24"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.4/24"})}
}

// with writes the file with more servers.
func (h *lbHost) with(servers string) (sum string) {
	h.t.Helper()
	return h.write(fmt.Sprintf(lbFile, servers))
}

func (h *lbHost) await(what string, done func(api.LBStatus) bool) api.LBStatus {
	h.t.Helper()
	return awaitStatus(h.host, what, done)
}

func (h *lbHost) awaitFile(sum string) {
	h.t.Helper()
	h.await("the file to be applied", func(s api.LBStatus) bool {
		if strings.Contains(s.Config.Error, "is it whole?") { // it is what the test means
			h.post(reloadAllowingRemovals, nil)
		}
		return s.Config.SHA256 == sum && s.Config.Error == ""
	})
}

func (h *lbHost) servers() (names []string) {
	h.t.Helper()
	var services []api.ServiceStatus
	require(h.t, h.client.Get(h.t.Context(), api.PathServices, &services))
	for _, server := range services[0].Servers {
		name := server.Name + " " + server.State.String()
		if server.Removed {
			name = server.Name + " removed"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (h *lbHost) expectServers(when string, want ...string) {
	h.t.Helper()
	if got := h.servers(); !slices.Equal(got, want) {
		h.t.Errorf("%s the servers are %q, not %q", when, got, want)
	}
}

func (h *lbHost) post(path string, body any) (answer api.Changed, err error) {
	err = h.client.Do(h.t.Context(), http.MethodPost, path, body, &answer)
	return answer, err
}

func TestAFileThatCannotBeAppliedIsRefusedAndTheOldStateGoesOn(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	h.with(", {name: s3, address: 10.9.0.4, id: 1}")
	status := h.await("the refusal", func(s api.LBStatus) bool { return s.Config.Error != "" })
	if !strings.Contains(status.Config.Error, "ballast.yaml:8") || !strings.Contains(status.Config.Error, "next free id is 3") {
		t.Errorf("the refusal says %q", status.Config.Error)
	}
	h.expectServers("after the refusal", "s1 active", "s2 active")
	h.awaitFile(h.with(", {name: s3, address: 10.9.0.4, id: 3}"))
	h.expectServers("after the correction", "s1 active", "s2 active", "s3 active")
	sum := h.with("")
	require(t, h.process.Process.Signal(unix.SIGHUP))
	h.awaitFile(sum)
	h.expectServers("after removal", "s1 active", "s2 active", "s3 removed")
}

// A VIP may be an address of the load balancer, as long as no port of the service is one that the daemon listens at.
func TestAServiceTakesNothingThatIsForTheDaemonItself(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	add := func(port uint32) error {
		_, err := h.client.Fleet().PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "own", Vip: "10.9.0.1", Ports: []uint32{port}}})
		return err
	}
	taken := ".vip: 10.9.0.1 port 9435 is where this load balancer listens by --metrics"
	if err := add(9435); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), taken) {
		t.Errorf("by ctl: %v", err)
	}
	file := fmt.Sprintf(lbFile, "")
	h.write(file + "  - {name: own, vip: 10.9.0.1, ports: [9435]}\n")
	status := h.await("the refusal", func(s api.LBStatus) bool { return s.Config.Error != "" })
	if !strings.Contains(status.Config.Error, taken) {
		t.Errorf("by the file: %q", status.Config.Error)
	}
	h.awaitFile(h.write(file))
	require(t, add(80))
}

func (h *lbHost) awaitAfterStart() {
	h.t.Helper()
	sum := h.with("")
	h.start()
	h.awaitFile(sum)
}

func TestChangesByCtlSurviveKillAndEditsElsewhere(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	fleet := h.client.Fleet()
	_, err := fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s1"})
	require(t, err)
	added, err := fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: &ballastv1.Server{Name: "s3", Address: "10.9.0.4"}})
	require(t, err)
	if added.Id != 3 {
		t.Errorf("the added server has id %d", added.Id)
	}
	h.expectServers("after ctl", "s1 draining", "s2 active", "s3 active")
	h.kill()
	h.start()
	h.await("the new process", func(s api.LBStatus) bool { return s.Ready })
	h.expectServers("after kill -9", "s1 draining", "s2 active", "s3 active")
	var diff api.Changed
	require(t, h.client.Get(t.Context(), api.PathConfigDiff, &diff))
	if len(diff.Changes) != 2 {
		t.Errorf("differences from the file: %q", diff.Changes)
	}
	_, err = h.post("/v1/config/reset", nil)
	require(t, err)
	h.expectServers("after reset", "s1 active", "s2 active", "s3 removed")
}

func TestAServerThatLeftAndDiedIsNoProblem(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	missed := func(s api.LBStatus) bool {
		return slices.ContainsFunc(s.Problems, func(p string) bool { return strings.HasPrefix(p, "server 10.9.0.9: ") })
	}
	h.awaitFileAfter(strings.Replace(lbFile, "%s", ", {name: s9, address: 10.9.0.9, id: 9}", 1))
	h.await("the missing server to be a problem", missed)
	_, err := h.client.Fleet().DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s9"})
	require(t, err)
	h.await("no problem of a draining one", func(s api.LBStatus) bool { return !missed(s) })
	_, err = h.client.Fleet().RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "s9", Force: true})
	require(t, err)
	h.expectServers("removed", "s1 active", "s2 active", "s9 removed")
	h.await("no problem of a removed one", func(s api.LBStatus) bool { return !missed(s) && s.Ready })
}

func TestRequestsThatMakeNoSenseAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	fleet, ctx := h.client.Fleet(), t.Context()
	refused := func(what string, err error, code connect.Code, want string) {
		t.Helper()
		if connect.CodeOf(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %s that says %q", what, err, code, want)
		}
	}
	_, err := fleet.DrainServer(ctx, &ballastv1.DrainServerRequest{Service: "none", Server: "s1"})
	refused("drain in no service", err, connect.CodeNotFound, "no service")
	_, err = fleet.DrainServer(ctx, &ballastv1.DrainServerRequest{Service: "web", Server: "none"})
	refused("drain nobody", err, connect.CodeNotFound, "no server")
	_, err = fleet.ForgetServer(ctx, &ballastv1.ServerRequest{Service: "web", Server: "s1"})
	refused("forget one that is there", err, connect.CodeNotFound, "not among the removed")
	_, err = fleet.WeighServer(ctx, &ballastv1.WeighServerRequest{Service: "web", Server: "s1", Weight: 999})
	refused("a large weight", err, connect.CodeInvalidArgument, "256")
	_, err = fleet.AddServer(ctx, &ballastv1.AddServerRequest{Service: "web", Server: &ballastv1.Server{Address: "10.9.0.2"}})
	refused("an address twice", err, connect.CodeInvalidArgument, "10.9.0.2")
	_, err = fleet.AddKey(ctx, &ballastv1.AddKeyRequest{Secret: []byte("short")})
	refused("a short key", err, connect.CodeInvalidArgument, "16 bytes")
	_, err = fleet.UseKey(ctx, &ballastv1.KeyRequest{Epoch: 7})
	refused("use no key", err, connect.CodeNotFound, "has no key")
	_, err = fleet.DropKey(ctx, &ballastv1.KeyRequest{Epoch: 1})
	refused("drop the current key", err, connect.CodeInvalidArgument, "current")
	var answer *api.Error
	if _, err = h.post("/v1/config/explode", nil); !errors.As(err, &answer) || answer.Code != http.StatusBadRequest {
		t.Errorf("explode: %v", err)
	}
	h.expectServers("after all", "s1 active", "s2 active")
}

func TestASecondDaemonOfTheInstanceIsRefused(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	second := h.command()
	var output bytes.Buffer
	second.Stderr = &output
	defer h.launch(second).Stop()
	if err := second.Wait(); err == nil || !strings.Contains(output.String(), "another process serves this instance") {
		t.Errorf("%v: %s", err, output.String())
	}
	h.expectServers("after the second one", "s1 active", "s2 active")
}

func TestCountersAreServedToPrometheus(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitFileAfter(strings.Replace(strings.Replace(lbFile, "ports: [80]", "ports: [80], session: tls, session_clients: 3", 1), "%s", "", 1))
	h.await("readiness", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	var sessions []api.SessionCounts
	require(t, h.client.Get(t.Context(), api.PathSessions, &sessions))
	if len(sessions) != 1 || sessions[0].Service != "web" || sessions[0].Clients != 3 || len(sessions[0].Hellos) != 9 {
		t.Errorf("%+v", sessions)
	}
	h.expectMetrics("by a file", `ballast_session_hellos_total{outcome="limited",service="web"} 0`, `ballast_packets_total{service="",verdict="forwarded_by_cookie"} 0`,
		`ballast_server_state{id="1",server="s1",service="web",state="active"} 1`, "ballast_config_refused 0\n", "go_gc_heap_live_bytes ", "process_open_fds ",
		`ballast_server_healthy{id="2",server="s2",service="web"} 1`, `ballast_server_weight{id="2",server="s2",service="web"} 1`,
		`ballast_service_taking_servers{service="web"} 2`, `ballast_interface_attached{interface="eth0"} 1`, "ballast_ready 1\n", "ballast_problems 0\n", "ballast_key_epoch 1\n",
		`ballast_build_info{goversion="go1.`, `ballast_timestamp_searches_total{service="web"} 0`, `ballast_service_healthy_servers{service="web"} 2`, `ballast_server_in_use{id="2",server="s2",service="web"} 1`)
	text := h.metrics()
	if series := strings.Count(text, `server="s2"`); series != 8 {
		t.Errorf("a server has %d series", series)
	}
	for _, none := range []string{`ballast_packets_total{service="web",verdict="forwarded_by_cookie"}`, "ballast_controllers_connected", "ballast_revision", "ballast_certificate"} {
		if strings.Contains(text, none) {
			t.Errorf("there is %s without any", none)
		}
	}
	h.awaitFile(h.write(strings.Replace(fmt.Sprintf(lbFile, ""), "{name: s1,", "{name: s1, state: draining,", 1)))
	h.expectMetrics("one drains", `ballast_service_taking_servers{service="web"} 1`, `ballast_server_weight{id="1",server="s1",service="web"} 0`,
		`ballast_server_in_use{id="1",server="s1",service="web"} 0`)
	require(t, h.space.SetLink("eth0", false))
	h.eventually("no next hop to the one that gets new connections", func() bool {
		text := h.metrics()
		return strings.Contains(text, `ballast_next_hops_missing{address="10.9.0.3",server="s2"} 1`) && strings.Count(text, "\nballast_next_hops_missing{") == 1
	})
}

// Promise: Connections are kept when `ballast lb` is killed or upgraded, also during a change, because the pinned
// data path goes on.
// Also held by TestAnUpdateThatWasCutOffCanBeFinished and TestConnectionsSurviveUpgradeInPlace.
func TestAnUpgradeToAnotherLayoutOfMapsReplacesTheProgramInPlace(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	expectKept := func(when string, packets uint64) {
		t.Helper()
		h.say(tableClient, 0, false)
		await.True(t, "a packet of a connection to its server "+when, func() bool { return h.counter("forwarded_by_cookie") == packets })
	}
	expectKept("before", 1)
	h.kill()
	h.start()
	h.await("the same program", func(s api.LBStatus) bool { return s.Ready })
	expectKept("after a restart", 2)
	h.kill()
	pins := filepath.Join(h.runDir(), "bpf", "test")
	layouts, err := filepath.Glob(filepath.Join(pins, "lb-v*"))
	require(t, err)
	if len(layouts) != 1 {
		t.Fatalf("layouts: %q", layouts)
	}
	require(t, os.Rename(layouts[0], filepath.Join(pins, "lb-v0"))) // what an older program would have left
	h.start()
	h.await("the newer program", func(s api.LBStatus) bool { return s.Ready })
	h.expectServers("after the upgrade", "s1 active", "s2 active")
	expectKept("after the upgrade", 1)
	if left, _ := filepath.Glob(filepath.Join(pins, "lb-v*")); len(left) != 1 || left[0] != layouts[0] {
		t.Errorf("layouts after the upgrade: %q", left)
	}
}

func TestALoadBalancerThatTheFileDoesNotNameIsNotReady(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	lacks := func(s api.LBStatus) bool { return says(s.NotReady, "tunnels_from lacks 10.9.0.1,") }
	file := fmt.Sprintf(lbFile, "")
	h.write(file + "tunnels_from: [10.9.0.9]\n")
	h.start()
	h.await("the reason", func(s api.LBStatus) bool { return !s.Ready && lacks(s) })
	h.awaitFile(h.write(file + "tunnels_from: [10.9.0.9, 10.9.0.1]\n"))
	h.await("its end", func(s api.LBStatus) bool { return !lacks(s) })
	h.awaitFile(h.write(file))
	h.await("no list", func(s api.LBStatus) bool { return s.Ready && !lacks(s) })
}
