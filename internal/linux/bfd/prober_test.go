package bfd_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// asks is a network function's end.
type asks struct {
	*testing.T
	*bfd.Prober
	space   *netspace.Space
	from    netip.Addr
	to      netip.Addr
	ifindex int
}

func (h *host) asks(t *testing.T, at [2]netip.Addr) *asks {
	a := &asks{T: t, space: h.spaces[1], from: at[1], to: at[0]}
	progtest.Check(t, a.space.Do(func() (err error) {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		a.ifindex = device.Index
		a.Prober, err = bfd.NewProber(at[0].Is6())
		return err
	}))
	t.Cleanup(func() { a.Prober.Close() })
	return a
}

func (a *asks) send(state uint8, mine, yours uint32) {
	a.Helper()
	progtest.Check(a, a.Send(a.from, a.to, a.ifindex, bfd.Packet{State: state, Multiplier: 3, Mine: mine, Yours: yours, IntervalUS: 100_000}))
}

func (a *asks) receive() bfd.Packet {
	a.Helper()
	type result struct {
		packet bfd.Packet
		err    error
	}
	received := make(chan result, 1)
	go func() {
		from, ifindex, packet, err := a.Receive()
		if err == nil && (from != a.to || ifindex != a.ifindex) {
			a.Errorf("from %s by device %d", from, ifindex)
		}
		received <- result{packet, err}
	}()
	select {
	case r := <-received:
		progtest.Check(a, r.err)
		return r.packet
	case <-time.After(10 * time.Second):
		a.Fatal("no answer")
		return bfd.Packet{}
	}
}

// functions opens a reflector that answers network functions for so long.
func (h *host) functions(t *testing.T, long time.Duration, neighbors ...netip.Addr) (r *bfd.Reflector) {
	t.Helper()
	r = h.follow(t, nil, sessions(100*time.Millisecond, neighbors))
	progtest.Check(t, r.Answer(long))
	return r
}

// Promise: Load balancers answer BFD of the network functions that services name, also for a while without a daemon, and of no others.
func TestNetworkFunctionsAreAnswered(t *testing.T) {
	h := newHost(t)
	for family, at := range h.addresses {
		reflector := h.functions(t, time.Hour, at[1])
		a := h.asks(t, at)
		a.send(1, 77, 0)
		first := a.receive()
		if first.State != 2 || first.Yours != 77 || first.Mine == 0 {
			t.Errorf("%s: Down is answered by %+v", family, first)
		}
		a.send(3, 78, first.Mine) // each packet has another discriminator
		if second := a.receive(); second.State != 3 || second.Yours != 78 || second.Mine != first.Mine || second.IntervalUS != 100_000 {
			t.Errorf("%s: Up is answered by %+v", family, second)
		}
		progtest.Check(t, reflector.Close())
		a.send(3, 79, first.Mine)
		if third := a.receive(); third.Yours != 79 {
			t.Errorf("%s: without a process: %+v", family, third)
		}
		reflector = h.functions(t, 0, at[1])
		a.send(3, 80, first.Mine)
		progtest.Check(t, reflector.Answer(time.Hour))
		a.send(3, 81, first.Mine)
		if fourth := a.receive(); fourth.Yours != 81 {
			t.Errorf("%s: it was answered when it was not to be: %+v", family, fourth)
		}
		progtest.Check(t, reflector.Close())
	}
}

func TestAHostHasRoomForOneProber(t *testing.T) {
	h := newHost(t)
	for _, at := range h.addresses {
		a := h.asks(t, at)
		progtest.Check(t, a.space.Do(func() error {
			if second, err := bfd.NewProber(at[0].Is6()); err == nil {
				second.Close()
				t.Error("a second prober has the port as well")
			}
			return nil
		}))
	}
}

// What comes from beyond a router, or is no control packet, is passed over.
func TestAProberTakesWhatComesFromTheLink(t *testing.T) {
	h := newHost(t)
	for family, at := range h.addresses {
		a := h.asks(t, at)
		lb := newRouter(t, h.spaces[0], at[0], at[1])
		good := packet{0x20, up, 3, 24, 5, 77, 100_000, 100_000, 0}
		lb.send(254, good.bytes())
		for _, p := range [][]byte{{}, good.bytes()[:20], append(good.bytes(), 0), packet{0x40, up, 3, 24, 5, 77, 1, 1, 0}.bytes(), packet{0x20, up | 4, 3, 24, 5, 77, 1, 1, 0}.bytes()} {
			lb.send(255, p)
		}
		good.yours = 78
		lb.send(255, good.bytes())
		if got := a.receive(); got.Yours != 78 {
			t.Errorf("%s: %+v", family, got)
		}
	}
}
