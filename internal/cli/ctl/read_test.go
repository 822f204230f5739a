package ctl_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
)

// statusOf asks a daemon whose status is that.
func statusOf(t *testing.T, status func() any) *terminal { return answerOf(t, api.PathStatus, status) }

// answerOf asks a daemon that has one answer.
func answerOf(t *testing.T, path string, status func() any) *terminal {
	t.Helper()
	server := api.NewServer()
	server.Handle("GET "+path, func(*http.Request) (any, error) { return status(), nil })
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	serves(t, server, socket)
	return &terminal{t, nil, []string{"ctl", "--socket", socket}}
}

// serves serves a socket until the test ends.
func serves(t *testing.T, server *api.Server, socket string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	listener := listen(t, "unix", socket)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWhoAsksAControllerIsToldOfLoadBalancers(t *testing.T) {
	dir := t.TempDir()
	daemon := func(instance, role string) {
		server := api.NewServer()
		server.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return api.Status{Role: role}, nil })
		server.Otherwise("this is another daemon")
		fleettest.Require(t, os.Mkdir(filepath.Join(dir, instance), 0o700))
		serves(t, server, api.SocketPath(dir, instance))
	}
	daemon("c1", "controller")
	refuse := func(line, want string) {
		t.Helper()
		_, err := clitest.Run(append([]string{"ctl", "--run-dir", dir}, strings.Fields(line)...)...)
		if err == nil || err.Error() != want {
			t.Errorf("%s: have %v, want %s", line, err, want)
		}
	}
	refuse("--instance c1 bgp show", "this is another daemon (no load balancer answers below "+dir+")")
	daemon("blue", "lb")
	daemon("green", "lb")
	daemon("s1", "agent")
	for _, line := range []string{"bgp show", "suspect list", "session list", "connection list", "trace", "suspect remove --service web --client 10.0.0.1"} {
		refuse("--instance c1 "+line, "this is another daemon (load balancers on this machine: --instance blue, --instance green)")
	}
	refuse("--instance blue bgp show", "this is another daemon")
}

func TestBGPTellsSessionsAndWhyAVIPIsNotAnnounced(t *testing.T) {
	ctl := answerOf(t, api.PathBGP, func() any {
		return &api.BGPStatus{AS: 64600, RouterID: netip.MustParseAddr("10.0.0.1"), Problems: []string{"bgp: something is wrong"},
			Neighbors: []api.BGPNeighbor{
				{Address: netip.MustParseAddr("10.0.0.254"), AS: 64512, Up: true, Carries: []string{"ipv4"}, BFD: &api.BGPBFD{Up: true, Detection: 0.6}},
				{Address: netip.MustParseAddr("2001:db8::1"), AS: 64513, Why: "cannot connect", BFD: &api.BGPBFD{}}},
			VIPs: []api.BGPVIP{
				{VIP: netip.MustParsePrefix("198.51.100.10/32"), Announced: true, Why: "it can be carried", To: []netip.Addr{netip.MustParseAddr("10.0.0.254")}},
				{VIP: netip.MustParsePrefix("2001:db8:51::11/128"), Announced: true, Why: "it can be carried"},
				{VIP: netip.MustParsePrefix("2001:db8:51::10/128"), Why: "this node is draining"}}}
	})
	ctl.expect("bgp", "AS 64600, router id 10.0.0.1", "10.0.0.254   64512  up", "up, within 600ms", "2001:db8::1  64513  down", "cannot connect",
		"198.51.100.10/32     yes", "2001:db8:51::11/128  no session", "2001:db8:51::10/128  no", "this node is draining", "problem: bgp: something is wrong")
	ctl.expect("--json bgp", `"router_id": "10.0.0.1"`, `"announced": true`, `"detection_seconds": 0.6`)
}

func TestStatusTellsWhichKeysOfTicketsAnAgentHas(t *testing.T) {
	ctl := statusOf(t, func() any {
		return &api.AgentStatus{Status: api.Status{Role: "agent", Ready: true}, TicketKeys: []api.TicketKeys{{Service: "web", Source: "controllers", Epoch: 12, Read: []uint32{11, 12, 13}},
			{Service: "mail", Source: "file"}, {Service: "news", Source: "host"}}}
	})
	ctl.expect("status", "service web: epoch 12 of controllers, 3 are read", "service mail: by --ticket-key", "service news: of this host alone")
	ctl.expect("--json status", `"ticket_keys"`, `"epoch": 12`)
}

func TestStatusShowsWhatAnAgentHasProbed(t *testing.T) {
	age := api.Seconds(4)
	at := netip.MustParseAddrPort("198.51.100.10:80")
	ctl := statusOf(t, func() any {
		return &api.AgentStatus{Status: api.Status{Role: "agent"}, Translated: &api.TranslatedUse{Entries: 70, Room: 65536, Evicted: 5, Age: 9},
			Probes: []api.ProbedPort{{At: at, Protocol: "tcp", State: api.ProbeLost, Age: &age}, {At: netip.AddrPortFrom(at.Addr(), 443), Protocol: "udp", State: api.ProbeUnknown}}}
	})
	ctl.expect("status", "tcp 198.51.100.10:80, no address of this host: lost (last 4 s ago)", "198.51.100.10:443, no address of this host: not known (never)",
		"70 connections of 65536 (9 s ago), 5 evicted")
	ctl.expect("--json status", `"state": "lost"`, `"age_seconds": 4`, `"room": 65536`)
}

// Agents before those that probe UDP name no protocol.
func TestStatusOfAnOlderAgentShowsItsProbes(t *testing.T) {
	ctl := statusOf(t, func() any {
		return json.RawMessage(`{"role": "agent", "probes": [{"at": "198.51.100.10:80", "state": "lost"}]}`)
	})
	ctl.expect("status", "tcp 198.51.100.10:80, no address of this host: lost (never)")
}

func TestStatusTellsWhichTierANodeIsOfAndWhoToldIt(t *testing.T) {
	second := model.Node{Name: "lb3", Tier: model.TierSecond, Address: netip.MustParseAddr("10.0.1.3"), ID: 1}
	var status atomic.Pointer[api.LBStatus]
	status.Store(&api.LBStatus{Status: api.Status{Role: "lb", Ready: true}, Name: "lb1", Tier: &api.TierStatus{Tier: model.TierFirst,
		Second: []api.SecondTierNode{{Node: second, Health: "unhealthy", HealthDetail: "connect: refused", Packets: 1234}}}})
	ctl := statusOf(t, func() any { return status.Load() })
	ctl.expect("status", "node             lb1", "tier             first", "lb3: id 1 at 10.0.1.3, active, unhealthy, 1234 packets sent", "connect: refused")
	ctl.expect("--json status", `"tier": "first"`, `"packets": 1234`)
	status.Store(&api.LBStatus{Name: "lb3", Tier: &api.TierStatus{Tier: model.TierSecond, ID: 1, Address: second.Address}})
	ctl.expect("status", "second, with id 1 at 10.0.1.3")

	told := api.Status{ByControllers: true, Config: api.Config{Path: "controller 10.0.3.22:6443"}}
	status.Store(&api.LBStatus{Status: told})
	ctl.expect("status", "last state from  10.0.3.22:6443")
	status.Store(&api.LBStatus{Status: told, Controllers: []string{"10.0.3.22:6443"}})
	ctl.expect("status", "\nstate from       10.0.3.22:6443")
}
