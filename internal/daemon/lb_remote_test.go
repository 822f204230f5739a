package daemon_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// remoteControllers are where a load balancer without a file looks for controllers.
var remoteControllers = []string{"10.9.0.2:6443", "10.9.0.3:6443"}

// remoteHost is a load balancer whose controllers the test plays.
type remoteHost struct{ *lbHost }

func newRemoteHost(t *testing.T) *remoteHost {
	t.Helper()
	h := &remoteHost{newLBHost(t)}
	h.role = "remote-lb"
	require(t, pki.Init(h.tlsDir(), pki.DefaultAuthorityLife, false))
	for _, r := range []pki.Request{{Role: pki.LB, Name: "lb1"}, {Role: pki.Controller, Name: "c1"}, {Role: pki.Controller, Name: "c2"}} {
		require(t, pki.Issue(h.tlsDir(), r))
	}
	return h
}

func (h *remoteHost) tlsDir() string { return filepath.Join(h.dir, "tls") }

// control starts controller i (1 or 2); end takes it away.
func (h *remoteHost) control(i int) (controller *hub.Hub, end func()) {
	h.t.Helper()
	return h.host.control(fmt.Sprintf("c%d", i), remoteControllers[i-1])
}

// control starts a controller in the peer's namespace.
func (h *host) control(name, address string) (controller *hub.Hub, end func()) {
	h.t.Helper()
	credentials, err := pki.Load(filepath.Join(h.dir, "tls"), name, pki.Controller)
	require(h.t, err)
	var listener net.Listener
	require(h.t, h.peer.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}))
	controller = hub.New(hub.Options{Name: name, Version: "test", Reports: nobody{}, Credentials: credentials, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	mux := http.NewServeMux()
	mux.Handle(controller.Handler())
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- hub.Serve(ctx, listener, credentials, nil, mux, nil) }()
	end = func() {
		cancel()
		require(h.t, <-ended)
	}
	return controller, end
}

type nobody struct{}

func (nobody) Traffic(string, []engine.ServerTraffic)      {}
func (nobody) Health(string, []engine.ServerHealth)        {}
func (nobody) Alive(string)                                {}
func (nobody) Load(pki.Identity, *engine.Load)             {}
func (nobody) Losses(pki.Identity, map[string]health.Loss) {}

// viewOf is a state with one service whose servers have the last digits of their addresses as ids.
func viewOf(revision uint64, down []uint16, ids ...uint16) *engine.View {
	s := model.NewService()
	s.Name, s.VIP, s.Ports, s.Dispatch = "web", netip.MustParseAddr("198.51.100.10"), []uint16{80}, model.DispatchAWFD
	for _, id := range ids {
		server := model.NewServer()
		server.Name, server.ID = fmt.Sprintf("s%d", id), id
		server.Address = netip.AddrFrom4([4]byte{10, 9, 0, byte(id)})
		s.Servers = append(s.Servers, server)
	}
	s.ApplyDefaults()
	keys := model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}}
	return &engine.View{Revision: revision, Keys: keys, Services: []engine.ServiceView{{Service: s, Down: down, Revision: revision}}}
}

// statuses are the servers with health and weight.
func (h *remoteHost) statuses() (lines []string) {
	h.t.Helper()
	list, err := h.client.Fleet().ListServers(h.t.Context(), &ballastv1.ListServersRequest{})
	require(h.t, err)
	for _, s := range list.Servers {
		lines = append(lines, fmt.Sprintf("%s %s %d", s.Server.Name, s.Health, s.Weight))
	}
	return lines
}

// examine runs the doctor where the daemon runs, without a file, and returns its problems that are not the test network's.
func (h *host) examine() (problems []string, found map[string]bool) {
	h.t.Helper()
	found = map[string]bool{}
	require(h.t, h.space.Do(func() error {
		for _, f := range doctor.Examine(h.t.Context(), doctor.Options{Role: doctor.RoleAuto, Instance: "test", RunDir: h.runDir(), StateDir: filepath.Join(h.dir, "state")}) {
			found[f.Check] = true
			if f.Severity == doctor.Problem && f.Check != "veth" {
				problems = append(problems, fmt.Sprint(f))
			}
		}
		return nil
	}))
	return problems, found
}

func (h *remoteHost) awaitStatuses(what string, want ...string) {
	h.t.Helper()
	await.Nil(h.t, what, func() error {
		if have := h.statuses(); !slices.Equal(have, want) {
			return fmt.Errorf("have %q, want %q", have, want)
		}
		return nil
	})
}

// Promise: When every controller is killed, state and weights stay, also over restarts of nodes.
// Also held by TestLosingControllersBreaksNothing.
func TestALoadBalancerTakesTheNewestStateOfItsControllersAndKeepsItWithoutThem(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	h.start()
	h.await("life without controllers", func(s api.LBStatus) bool {
		return !s.Ready && len(s.Problems) == 2 && s.Problems[0] == "no controller has sent a state yet, and no state was kept" && strings.HasPrefix(s.Problems[1], "no controller is connected (10.9.0.2:6443: ")
	})
	h.awaitHealth("without any state", http.StatusServiceUnavailable)
	h.expectMetrics("without controllers", "ballast_ready 0\n", "ballast_problems 2\n", "ballast_revision 0\n", "ballast_controllers_connected 0\n", "ballast_controllers_configured 2\n",
		`ballast_interface_attached{interface="eth0"} `, `ballast_certificate_expiry_timestamp_seconds{certificate="authority"} `)
	first, endFirst := h.control(1)
	first.Topics.SetState(viewOf(5, nil, 2, 3))
	h.await("the state", func(s api.LBStatus) bool { return s.Revision == 5 && len(s.Controllers) == 1 })
	h.expectServers("as told", "s2 active", "s3 active")
	h.awaitHealth("with a state", http.StatusOK)
	if problems, found := h.examine(); len(problems) > 0 || !found["state"] || !found["mtu"] { // of the ways to the servers
		t.Errorf("doctor without a file has looked at %v, and found %q", found, problems)
	}

	second, endSecond := h.control(2)
	second.Topics.SetState(viewOf(4, nil, 2))
	h.await("the second controller", func(s api.LBStatus) bool { return len(s.Controllers) == 2 })
	h.expectServers("an older state is no news", "s2 active", "s3 active")
	second.Topics.SetState(viewOf(6, []uint16{3}, 2, 3, 4))
	h.await("the newest state", func(s api.LBStatus) bool { return s.Revision == 6 })
	h.awaitStatuses("weights before any are told", "s2 unchecked 1", "s3 unhealthy 0", "s4 unchecked 1")

	first.Topics.SetWeights("web", &follow.Update{Term: 2, Version: 1, Complete: true, Weights: []model.Share{{ID: 2, Weight: 1}, {ID: 4, Weight: 4}}})
	h.awaitStatuses("as weighed", "s2 unchecked 1", "s3 unhealthy 0", "s4 unchecked 4")
	second.Topics.SetWeights("web", &follow.Update{Term: 1, Version: 9, Complete: true, Weights: []model.Share{{ID: 2, Weight: 3}, {ID: 4, Weight: 3}}})
	second.Topics.SetWeights("web", &follow.Update{Term: 3, Version: 1, Complete: true, Weights: []model.Share{{ID: 2, Weight: 2}, {ID: 4, Weight: 4}}})
	h.awaitStatuses("as weighed by the next leader", "s2 unchecked 2", "s3 unhealthy 0", "s4 unchecked 4")

	_, err := h.client.Fleet().DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s2"})
	if err == nil || !strings.Contains(err.Error(), "--controller "+strings.Join(remoteControllers, ",")) {
		t.Errorf("a change of one node alone: %v", err)
	}
	h.expectControllersNamed()
	h.expectMetrics("by controllers", "ballast_ready 1\n", "ballast_revision 6\n", "ballast_controllers_connected 2\n", "ballast_key_epoch 1\n",
		`ballast_server_healthy{id="3",server="s3",service="web"} 0`, `ballast_server_healthy{id="4",server="s4",service="web"} 1`,
		`ballast_server_weight{id="3",server="s3",service="web"} 0`, `ballast_server_weight{id="4",server="s4",service="web"} 4`,
		`ballast_server_living_connections{id="4",server="s4",service="web"} 0`, `ballast_service_taking_servers{service="web"} 2`)

	endFirst()
	endSecond()
	h.await("the loss of the controllers", func(s api.LBStatus) bool { return len(s.Controllers) == 0 })
	h.expectMetrics("without controllers any more", "ballast_ready 1\n", "ballast_revision 6\n", "ballast_controllers_connected 0\n")
	h.expectServers("without controllers", "s2 active", "s3 active", "s4 active")
	h.awaitHealth("without controllers", http.StatusOK)
	if answer, err := h.client.Fleet().GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err != nil || answer.Unconfirmed != "no controller is connected" {
		t.Errorf("without controllers it says of what it knows %q, %v", answer.GetUnconfirmed(), err)
	}
	h.kill()
	h.start()
	h.await("the new process", func(s api.LBStatus) bool { return s.Ready && s.Revision == 6 })
	h.awaitHealth("in a new process without controllers", http.StatusOK)
	h.expectServers("in a new process without controllers", "s2 active", "s3 active", "s4 active")
	h.awaitStatuses("health and weights are remembered", "s2 unchecked 2", "s3 unhealthy 0", "s4 unchecked 4")

	third, endThird := h.control(1)
	defer endThird()
	third.Topics.SetState(viewOf(7, nil, 4))
	h.await("what happened meanwhile", func(s api.LBStatus) bool { return s.Revision == 7 })
	since := func() (joined time.Time) {
		for _, node := range third.Nodes.List() {
			joined = node.Since.AsTime()
		}
		return joined
	}
	joined := since()
	h.expectServers("resynchronised", "s4 active")
	require(t, h.process.Process.Signal(unix.SIGHUP))
	h.await("another stream", func(s api.LBStatus) bool { return since().After(joined) && s.Revision == 7 && len(s.Controllers) == 1 })
	joined = since()
	require(t, h.reload())
	h.await("one more", func(s api.LBStatus) bool { return since().After(joined) && s.Revision == 7 })
}

func TestMetricsSayWhatChecksSayAndWhoIsUsedApart(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	h.start()
	controller, end := h.control(1)
	defer end()
	v := viewOf(5, []uint16{2}, 2, 3, 4)
	v.Services[0].Kept = []uint16{3, 4}
	v.Services[0].Service.Health.Check = model.CheckTCP
	v.Services[0].Removed = []model.Server{{Name: "s77", ID: 77, Address: netip.MustParseAddr("10.9.0.77"), Weight: 1}}
	controller.Topics.SetState(v)
	h.await("the state", func(s api.LBStatus) bool {
		return s.Revision == 5 && strings.Contains(strings.Join(s.Problems, "\n"), "service web: no server is healthy: new connections go to 2 servers that fail their checks (all_down: keep)")
	})
	h.expectMetrics("every server fails", `ballast_service_healthy_servers{service="web"} 0`, `ballast_service_taking_servers{service="web"} 2`,
		`ballast_server_healthy{id="2",server="s2",service="web"} 0`, `ballast_server_in_use{id="2",server="s2",service="web"} 0`,
		`ballast_server_healthy{id="3",server="s3",service="web"} 0`, `ballast_server_in_use{id="3",server="s3",service="web"} 1`)
	// The removed server is not there. Who is, gets new connections.
	h.eventually("only those that get new connections are missed", func() bool { return !strings.Contains(h.metrics(), "\nballast_next_hops_missing{") })
	h.awaitStatuses("as checks say", "s2 unhealthy 0", "s3 unhealthy 1", "s4 unhealthy 1", "s77 unknown 0")
	h.kill()
	h.start()
	h.await("the new process", func(s api.LBStatus) bool { return s.Revision == 5 })
	h.expectMetrics("after a restart", `ballast_service_healthy_servers{service="web"} 0`, `ballast_server_healthy{id="3",server="s3",service="web"} 0`)
}

// expectControllersNamed is about what a load balancer without a file cannot tell.
func (h *remoteHost) expectControllersNamed() {
	h.t.Helper()
	ask := "ballast ctl --controller " + strings.Join(remoteControllers, ",")
	var diff api.Changed
	if err := h.client.Get(h.t.Context(), api.PathConfigDiff, &diff); err == nil || !strings.Contains(err.Error(), "no configuration file") || !strings.Contains(err.Error(), ask+" apply -f FILE --dry-run") {
		h.t.Errorf("what differs from no file: %q, %v", diff.Changes, err)
	}
	keys, err := h.client.Fleet().ListKeys(h.t.Context(), &ballastv1.ListKeysRequest{})
	if err != nil || strings.Contains(keys.Blind, "by a file") || !strings.Contains(keys.Blind, ask) {
		h.t.Errorf("who knows of keys: %v, %v", keys, err)
	}
	nodes, err := h.client.Fleet().ListNodes(h.t.Context(), &ballastv1.ListNodesRequest{})
	if err != nil || nodes.Nodes[0].Revision != 6 {
		h.t.Errorf("nodes that a node knows: %v, %v", nodes, err)
	}
}

func TestAKeyThatDoesNotFitIsAProblemUntilItDoes(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	h.start()
	own := filepath.Join(h.tlsDir(), "lb1.key")
	right, err := os.ReadFile(own)
	require(t, err)
	wrong, err := os.ReadFile(filepath.Join(h.tlsDir(), "c1.key"))
	require(t, err)
	unfit := func(s api.LBStatus) bool {
		return slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "lb1.key: it does not belong to") })
	}
	h.await("the daemon", func(s api.LBStatus) bool { return !unfit(s) })
	require(t, os.WriteFile(own, append(wrong, '\n'), 0o600))
	h.await("the problem", unfit)
	require(t, os.WriteFile(own, right, 0o600))
	h.await("the end of the problem", func(s api.LBStatus) bool { return !unfit(s) })
}

// Promise: A state that is inconsistent or does not fit is rejected as a whole and reported, and the node takes
// the first complete one that works.
func TestAStateThatMakesNoSenseIsRefusedAndTheOldOneGoesOn(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	h.start()
	hub, end := h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	h.await("the state", func(s api.LBStatus) bool { return s.Revision == 1 })
	bad := viewOf(2, nil, 2, 3)
	bad.Services[0].Service.Servers[1].ID = 2
	hub.Topics.SetState(bad)
	status := h.await("the refusal", func(s api.LBStatus) bool { return s.Config.Error != "" })
	if !strings.Contains(status.Config.Error, "state 2 of controller 10.9.0.2:6443") || status.Revision != 1 {
		t.Errorf("at revision %d the refusal says %q", status.Revision, status.Config.Error)
	}
	h.expectServers("after the refusal", "s2 active", "s3 active")

	other := viewOf(3, nil, 4).Services[0]
	other.Service.Name, other.Service.VIP = "mail", netip.MustParseAddr("198.51.100.11")
	bad.Revision, bad.Services = 3, append([]engine.ServiceView{other}, bad.Services...)
	hub.Topics.SetState(bad)
	status = h.await("the refusal of all that there is", func(s api.LBStatus) bool { return strings.Contains(s.Config.Error, "state 3 of") })
	if status.Revision != 1 || h.service("mail") != nil {
		t.Errorf("what came after the refused state was taken without it: revision %d", status.Revision)
	}
	good := viewOf(4, nil, 2)
	good.Services = append([]engine.ServiceView{other}, good.Services...)
	hub.Topics.SetState(good)
	h.await("the correction", func(s api.LBStatus) bool { return s.Revision == 4 && s.Config.Error == "" })
	if h.service("mail") == nil {
		t.Error("what came after the refused state was lost")
	}
}
