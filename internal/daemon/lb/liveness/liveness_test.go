package liveness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Neighbours of the load balancer.
var (
	own       = netip.MustParseAddr("10.9.0.1")
	function1 = netip.MustParseAddr("10.9.0.2")
	function2 = netip.MustParseAddr("10.9.0.3")
	router    = netip.MustParseAddr("10.9.0.4")
)

// host is a load balancer's with a responder, and its neighbours'.
type host struct {
	*testing.T
	*Responder
	space, peer *netspace.Space
	pins        string
	stop, ring  string
	log         bytes.Buffer

	prober  *bfd.Prober // at the peer
	ifindex int         // there
	answers chan bfd.Packet
	asked   uint32
}

func newHost(t *testing.T) *host {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{T: t, space: progtest.NewSpace(t, "l"), peer: progtest.NewSpace(t, "f"), pins: progtest.Pins(t), answers: make(chan bfd.Packet, 100)}
	progtest.Connect(t, h.space, "eth0", 1, h.peer, "eth0", 2, 9, 1500)
	for _, address := range []netip.Addr{function2, router} {
		progtest.Check(t, h.peer.AddAddress("eth0", netip.PrefixFrom(address, 24)))
	}
	progtest.Check(t, h.peer.Do(func() (err error) {
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			h.ifindex = device.Index
			h.prober, err = bfd.NewProber(false)
		}
		return err
	}))
	t.Cleanup(func() { h.prober.Close() })
	go func() {
		for {
			_, _, packet, err := h.prober.Receive()
			if err != nil {
				return
			}
			h.answers <- packet
		}
	}()
	tables, err := dataplane.Open(dataplane.Options{Limits: plan.Limits{Services: 8, Servers: 16, ServerIDs: 1 << 12, Slots: 1 << 14, Rounds: 1 << 10, Entries: 16, Local: 16, Replicated: 1 << 10},
		Self: "lb1", NoCookie: func(*dataplane.Snapshot, *model.Service) map[uint16]bool { return nil }, Log: slog.New(slog.DiscardHandler)})
	progtest.Check(t, err)
	t.Cleanup(func() { tables.Path().Close() })
	h.Responder = New(Options{Pins: h.pins, Tables: tables, Log: slog.New(slog.NewTextHandler(&h.log, nil)), Stop: func() string { return h.stop }, Ring: func() string { return h.ring }})
	return h
}

const header = `
keys: {placement: 000102030405060708090a0b0c0d0e0f, current: 1, cookie: {1: 00112233445566778899aabbccddeeff}}
`

func parsed(t *testing.T, text string) model.Fleet {
	t.Helper()
	running, err := config.Parse("fleet", []byte(header+text))
	progtest.Check(t, err)
	return running
}

// gateway is a fleet whose functions have these addresses.
func (h *host) gateway(state model.ServerState, functions ...netip.Addr) model.Fleet {
	h.Helper()
	var servers []string
	for _, address := range functions {
		servers = append(servers, fmt.Sprintf("{name: f%s, address: %s, id: %d}", address, address, address.As4()[3]))
	}
	running := parsed(h.T, fmt.Sprintf("services: [{name: gateway, protocol: any, affinity: hash, destinations: 0.0.0.0/0, servers: [%s]}]", strings.Join(servers, ", ")))
	running.Nodes = []model.Node{{Name: "lb1", State: state}}
	return running
}

// here does something in the load balancer's namespace.
func (h *host) here(do func() error) {
	h.Helper()
	progtest.Check(h, h.space.Do(do))
}

// becomes gives the tables a state, and has the responder look.
func (h *host) becomes(running model.Fleet, removed ...fleet.Removed) {
	h.Helper()
	h.here(func() error {
		return h.o.Tables.Reconcile(&desired.State{Desired: fleet.Desired{Running: running, Removed: removed}, Self: "lb1"})
	})
	h.looks()
}

func (h *host) looks() {
	h.Helper()
	h.here(func() error { h.look(); return nil })
}

func (h *host) routersAre(addresses ...netip.Addr) {
	h.Helper()
	h.here(func() error { return h.Routers(sessionsWith(addresses...)) })
}

func sessionsWith(routers ...netip.Addr) (sessions []bfd.Session) {
	for _, address := range routers {
		sessions = append(sessions, bfd.Session{Neighbor: address, Interval: 300 * time.Millisecond, Multiplier: 3})
	}
	return sessions
}

// ask sends a first packet of a neighbour.
func (h *host) ask(from netip.Addr) (number uint32) {
	h.Helper()
	h.asked++
	progtest.Check(h, h.prober.Send(from, own, h.ifindex, bfd.Packet{State: 1, Multiplier: 3, Mine: h.asked, IntervalUS: 100_000}))
	return h.asked
}

// answer is the next one to one of these packets.
func (h *host) answer(numbers ...uint32) bfd.Packet {
	h.Helper()
	for deadline := time.After(progtest.Deadline); ; {
		select {
		case packet := <-h.answers:
			if slices.Contains(numbers, packet.Yours) {
				return packet
			}
		case <-deadline:
			h.Fatalf("no answer to packets %v", numbers)
		}
	}
}

// expect checks who of the functions is answered. Packets of the router, who always is, come behind theirs.
func (h *host) expect(when string, answered ...netip.Addr) {
	h.Helper()
	for _, address := range []netip.Addr{function1, function2} {
		asked, end := h.ask(address), h.ask(router)
		first := h.answer(asked, end)
		if have := first.Yours == asked; have != slices.Contains(answered, address) {
			h.Errorf("%s: %s is answered: %t", when, address, have)
		} else if have && (first.IntervalUS != 100_000 || first.Multiplier != 3) {
			h.Errorf("%s: the answer is %+v", when, first)
		}
	}
}

// until is how long functions are answered without a process, from now on; negative: they are not.
func (h *host) until() (at uint64, left time.Duration) {
	h.Helper()
	at = progtest.PinnedWord(h.T, filepath.Join(h.pins, "bfd/bfd-v1/bfd_until"))
	var now unix.Timespec
	progtest.Check(h, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return at, time.Duration(int64(at) - now.Nano())
}

// pinned reports whether answers outlive this process.
func (h *host) pinned() bool {
	_, err := os.Stat(filepath.Join(h.pins, "bfd"))
	return err == nil
}

// earlier answers as a process that has ended did.
func (h *host) earlier() {
	h.Helper()
	h.here(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		reflector, err := bfd.Open(h.pins)
		if err != nil {
			return err
		}
		functions := []bfd.Session{{Neighbor: function1, Interval: 100 * time.Millisecond, Multiplier: 3}}
		return errors.Join(reflector.Follow(sessionsWith(router), functions, []int{device.Index}), reflector.Answer(time.Hour), reflector.Close())
	})
}

// Promise: A load balancer answers the BFD of the network functions that services name, and of removed ones with connections, while it forwards for them.
func TestFunctionsAreAnsweredWhileTheNodeForwardsForThem(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.earlier()
	h.looks()
	h.expect("no state is known: an earlier process did", function1)
	if !h.pinned() {
		t.Error("no state is known, and what an earlier process has pinned is gone")
	}

	h.becomes(h.gateway(model.StateActive, function2))
	h.routersAre(router)
	h.expect("one function", function2)
	at, left := h.until()
	if left > grace || left < grace/2 {
		t.Errorf("without a process functions are answered for %s", left)
	}
	h.becomes(h.gateway(model.StateActive, function2), fleet.Removed{Service: "gateway", Server: model.Server{Address: function1}})
	h.expect("another was removed and has connections", function1, function2)
	if later, _ := h.until(); later <= at {
		t.Error("it looks, and functions are answered no longer than before")
	}

	h.ring = "off the ring"
	before, _ := h.until()
	h.looks()
	if after, _ := h.until(); after != before {
		t.Errorf("off the ring functions are to be answered as long as they were: %d, then %d", before, after)
	}
	h.expect("off the ring", function1, function2)
	h.ring = ""

	h.stop = "no program is attached"
	h.looks()
	h.expect("nothing is forwarded")
	h.stop = ""
	h.looks()
	h.expect("packets are forwarded again", function1, function2)
	h.becomes(h.gateway(model.StateDraining, function1, function2))
	h.expect("the node drains")
	h.becomes(h.gateway(model.StateActive, function1, function2))
	h.expect("the node is active", function1, function2)

	h.routersAre()
	h.answer(h.ask(function1))
	if states := h.States([]netip.Addr{router}); len(states) > 0 {
		t.Errorf("no router is there: %v", states)
	}
	h.routersAre(router)
	h.becomes(parsed(t, "services: []"))
	h.expect("no service is of functions")
	if state := h.States([]netip.Addr{router})[router]; state.Received == 0 {
		t.Errorf("the router: %+v", state)
	}
	h.routersAre()
	if h.pinned() {
		t.Error("nobody is to be answered, and there are pins")
	}
	h.routersAre(router)
	h.answer(h.ask(router))
}

func TestWhyFunctionsGetNoAnswerIsAProblemThatIsLoggedOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.becomes(h.gateway(model.StateActive, function1))
	var many []netip.Addr
	for i := range byte(65) {
		many = append(many, netip.AddrFrom4([4]byte{10, 9, 1, i}))
	}
	h.here(func() error {
		if h.Routers(sessionsWith(many...)) == nil {
			t.Error("it has room for 65 routers")
		}
		return nil
	})
	h.looks()
	h.looks()
	if problems := h.Problems(); len(problems) != 1 || !strings.HasPrefix(problems[0], "network functions: answer BFD of 10.9.1.") || strings.Count(h.log.String(), "not answered") != 1 {
		t.Errorf("%q, log: %s", problems, h.log.String())
	}
	h.routersAre(router)
	h.looks()
	if problems := h.Problems(); problems != nil {
		t.Errorf("%q", problems)
	}
	h.expect("routers are few", function1)
}

// Promise: A load balancer whose daemon ends is not left by network functions at once: it may start again.
func TestAResponderThatHasEndedLeavesFunctionsAnswered(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	running := h.gateway(model.StateActive, function1)
	h.here(func() error {
		return h.o.Tables.Reconcile(&desired.State{Desired: fleet.Desired{Running: running}, Self: "lb1"})
	})
	h.routersAre(router)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	looked := make(chan struct{}, 100)
	h.o.Stop = func() string { looked <- struct{}{}; return "" }
	h.Wake()
	h.Wake() // once is enough
	if len(h.wake) != 1 {
		t.Error("it is not woken")
	}
	go func() { ended <- h.space.Do(func() error { h.Responder.Run(ctx); return nil }) }()
	for range 2 { // at first, and as it is woken
		<-looked
	}
	for deadline := time.After(progtest.Deadline); len(h.wake) > 0; {
		select {
		case <-looked: // by its period
		case <-deadline:
			t.Fatal("it does not wake up")
		}
	}
	cancel()
	progtest.Check(t, <-ended)
	h.routersAre(function2)
	h.expect("it has ended", function1)
	if !h.pinned() {
		t.Error("it has ended, and answers end with the process")
	}
	if states := h.States([]netip.Addr{router}); states != nil {
		t.Errorf("it has ended, and knows routers: %v", states)
	}
}

func TestFunctionsAreThoseOfServicesAndRemovedOnesThatMayHaveConnections(t *testing.T) {
	running := parsed(t, `
services:
  - {name: web, vip: 198.51.100.10, ports: [80], servers: [{name: s1, address: 10.9.0.9, id: 1}]}
  - {name: gateway, protocol: any, affinity: hash, destinations: 0.0.0.0/0, servers: [{name: f2, address: 10.9.0.3, id: 2}, {name: f1, address: 10.9.0.2, id: 1}]}
  - {name: public, protocol: any, affinity: hash, destinations: 203.0.113.1/32, servers: [{name: f1, address: 10.9.0.2, id: 1, weight: 0}, {name: f6, address: "fd09::6", id: 6, weight: 0}]}
`)
	at := func(address string) model.Server { return model.Server{Address: netip.MustParseAddr(address)} }
	var have []string
	for _, s := range FunctionsOf(&running, []fleet.Removed{{Service: "gateway", Server: at("10.9.0.4")}, {Service: "gateway", Server: at("10.9.0.5"), Forgotten: true},
		{Service: "web", Server: at("10.9.0.7")}, {Service: "before", Server: at("10.9.0.8")}}) {
		have = append(have, fmt.Sprintf("%s %s %d", s.Neighbor, s.Interval, s.Multiplier))
	}
	if want := []string{"10.9.0.2 100ms 3", "10.9.0.3 100ms 3", "10.9.0.4 100ms 3", "fd09::6 100ms 3"}; !slices.Equal(have, want) {
		t.Errorf("%q", have)
	}
}
