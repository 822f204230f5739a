package mptcp

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var joinVIP = netip.MustParsePrefix("198.51.100.10/32")

func joinAt(ports ...uint16) (list []netip.AddrPort) {
	for _, port := range ports {
		list = append(list, netip.AddrPortFrom(joinVIP.Addr(), port))
	}
	return list
}

// joinHost is a host with agents, which live and die.
type joinHost struct {
	*testing.T
	space *netspace.Space
	dir   string
}

func newJoinHost(t *testing.T) *joinHost {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	space := progtest.NewSpace(t, "joins")
	h := &joinHost{t, space, t.TempDir()}
	h.do(func() error {
		if _, err := mptcp.Endpoints(); errors.Is(err, mptcp.ErrUnknown) {
			t.Skip(err)
		}
		return nil
	})
	if err := space.AddAddress("lo", joinVIP); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *joinHost) do(fn func() error) {
	h.Helper()
	if err := h.space.Do(fn); err != nil {
		h.Fatal(err)
	}
}

// agent is a process that has just begun.
func (h *joinHost) agent(instance string) *Joins {
	return New(h.dir, instance, slog.New(slog.DiscardHandler))
}

func (h *joinHost) set(j *Joins, ports ...uint16) {
	h.Helper()
	h.do(func() error {
		j.Set(joinAt(ports...), nil)
		return nil
	})
}

// expect holds that clients are told these ports, and whether they may join at the service's own.
func (h *joinHost) expect(when string, initial bool, ports ...uint16) {
	h.Helper()
	h.do(func() error {
		there, err := mptcp.Endpoints()
		if err != nil {
			return err
		}
		var have []uint16
		for _, e := range there {
			have = append(have, e.Address.Port())
		}
		slices.Sort(have)
		if !slices.Equal(have, ports) {
			h.Errorf("%s: clients are told %v, not %v", when, have, ports)
		}
		if may, err := mptcp.JoinInitial(); err != nil || may != initial {
			h.Errorf("%s: clients may join at the first port: %v, %v", when, may, err)
		}
		return nil
	})
}

func (h *joinHost) leave(instance string) {
	h.Helper()
	h.do(func() error { return h.agent(instance).Leave() })
}

func TestAgentsTellClientsWhereToJoinAndUndoIt(t *testing.T) {
	h := newJoinHost(t)
	h.leave("a")
	h.expect("before", true)
	if entries, _ := os.ReadDir(h.dir); len(entries) != 0 {
		t.Errorf("an agent that has nothing to undo leaves %v", entries)
	}
	a := h.agent("a")
	h.set(a)
	if entries, _ := os.ReadDir(h.dir); len(entries) != 0 {
		t.Errorf("an agent without mptcp makes %v", entries)
	}
	h.set(a, 40001, 40002)
	h.expect("two services", false, 40001, 40002)
	if len(a.Problems) != 0 {
		t.Error(a.Problems)
	}
	h.do(func() error { return mptcp.Add(joinAt(50000)[0]) }) // somebody else's
	h.set(a, 40002, 40003)
	h.expect("another service", false, 40002, 40003, 50000)

	h.do(func() error { // somebody flushes them
		there, err := mptcp.Endpoints()
		return errors.Join(err, mptcp.Remove(there[0]), mptcp.SetJoinInitial(true))
	})
	h.do(func() error { a.Follow(); return nil })
	h.expect("after a flush", false, 40002, 40003, 50000)

	a = h.agent("a") // killed, and started with another file
	h.set(a, 40004)
	h.expect("a restart", false, 40004, 50000)
	b := h.agent("b")
	h.set(b, 40004, 40005)
	h.expect("another instance", false, 40004, 40005, 50000)
	h.leave("a")
	h.expect("the first has left", false, 40004, 40005, 50000)
	h.leave("b")
	h.expect("both have left", true, 50000)
	if _, err := os.Stat(a.path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("their file is left: %v", err)
	}
	h.leave("b")
	h.expect("twice", true, 50000)
}

func TestWhatWasSetBeforeAgentsStaysSo(t *testing.T) {
	h := newJoinHost(t)
	h.do(func() error { return mptcp.SetJoinInitial(false) })
	h.set(h.agent("a"), 40001)
	h.leave("a")
	h.expect("it was off before", false)
}

// Connections that know the port of the last epoch may join there until its key is dropped; but not at the price of new ports.
func TestPortsOfTheLastEpochAreKept(t *testing.T) {
	h := newJoinHost(t)
	a := h.agent("a")
	change := func(wanted, kept []netip.AddrPort) { h.do(func() error { a.Set(wanted, kept); return nil }) }
	h.set(a, 40001)
	change(joinAt(40002), joinAt(40001))
	h.expect("the next epoch", false, 40001, 40002)
	if !a.settled || len(a.Problems) != 0 {
		t.Errorf("it is looked at again: %v", a.Problems)
	}
	a = h.agent("a") // killed
	change(joinAt(40002), joinAt(40001, 40003))
	h.expect("a restart: what is kept is not made", false, 40001, 40002)
	change(joinAt(40001), joinAt(40002))
	h.expect("the epoch before again", false, 40001, 40002)
	change(joinAt(40002), nil)
	h.expect("its key is dropped", false, 40002)
	before, after := joinAt(40001, 40002, 40003, 40004, 40005), joinAt(41001, 41002, 41003, 41004, 41005)
	change(before, nil)
	change(after, before)
	h.do(func() error { a.Follow(); return nil })
	h.expect("five services and room for eight", false, 41001, 41002, 41003, 41004, 41005)
	if h.do(func() error { a.Follow(); return nil }); len(a.Problems) != 0 || !a.settled {
		t.Errorf("with room for all: %v", a.Problems)
	}
}

// A port that a program of the host has is not taken from it, and the one of the last epoch goes on.
func TestAPortInUseIsAProblemAndLeftAlone(t *testing.T) {
	h := newJoinHost(t)
	a := h.agent("a")
	h.set(a, 40001)
	var listener net.Listener
	h.do(func() (err error) { listener, err = net.Listen("tcp4", ":40002"); return err })
	defer listener.Close()
	h.do(func() error { a.Set(joinAt(40002), joinAt(40001)); return nil })
	h.expect("somebody listens there", false, 40001)
	if len(a.Problems) != 1 || !strings.Contains(a.Problems[0], "another program has the port") {
		t.Errorf("problems %q", a.Problems)
	}
	listener.Close()
	h.do(func() error { a.Follow(); return nil })
	h.expect("nobody does any more", false, 40001, 40002)
}

// To remove an address ends the subflows that have joined there.
func TestWhereSubflowsAreIsNotRemoved(t *testing.T) {
	h := newJoinHost(t)
	a := h.agent("a")
	var conn, peer net.Conn
	h.do(func() error {
		listener, err := net.Listen("tcp4", joinAt(40001)[0].String())
		if err != nil {
			return err
		}
		if conn, err = net.Dial("tcp4", listener.Addr().String()); err != nil {
			return err
		}
		peer, err = listener.Accept()
		return errors.Join(err, listener.Close())
	})
	defer conn.Close()
	h.set(a, 40001, 40002)
	// The kernel cannot listen where a connection of ours is, without SO_REUSEADDR, or can: what counts is that it is not removed.
	h.do(func() error { _ = mptcp.Add(joinAt(40001)[0]); return nil })
	h.set(a)
	busy := []uint16{40001}
	h.do(func() error {
		there, err := mptcp.Endpoints()
		if len(there) == 0 {
			busy = nil
		}
		return err
	})
	h.expect("while a connection is there", false, busy...)
	if a.settled {
		t.Error("it is not looked at again")
	}
	peer.Close()
	conn.Close()
	h.do(func() error { // who closes first is in TIME_WAIT, which does not count
		for range 1000 {
			if a.Follow(); a.settled {
				return nil
			}
		}
		return errors.New("a port that nobody uses is not given up")
	})
	h.expect("after it", true)
}

// Promise: MPTCP endpoints beyond the 8 of a host are not announced, and are a problem in status.
func TestProblemsOfJoinsAreSaidAndMended(t *testing.T) {
	h := newJoinHost(t)
	a := h.agent("a")
	elsewhere := netip.MustParsePrefix("198.51.100.11/32")
	h.do(func() error { a.Set([]netip.AddrPort{netip.AddrPortFrom(elsewhere.Addr(), 40001)}, nil); return nil })
	if problem := strings.Join(a.Problems, "\n"); !strings.Contains(problem, "198.51.100.11:40001") || !strings.Contains(problem, "give this host the vip") {
		t.Errorf("an address that the host has not: %q", problem)
	}
	if err := h.space.AddAddress("lo", elsewhere); err != nil {
		t.Fatal(err)
	}
	h.do(func() error { a.Follow(); return nil })
	if len(a.Problems) != 0 || !a.settled {
		t.Errorf("after it has the address: %v", a.Problems)
	}
	h.set(a, 40001, 40002, 40003, 40004, 40005, 40006, 40007, 40008, 40009)
	h.do(func() error { a.Follow(); return nil }) // the one of before is gone now
	if len(a.Problems) != 1 || !strings.Contains(a.Problems[0], "room for 8") {
		t.Errorf("one more than there is room for: %q", a.Problems)
	}
	h.set(a)
	for _, damage := range []string{"", "{", "null", "[]", `{"net:[1]": null}`, `{"x": {"instances": {"a": ["no address"]}}}`} {
		if err := os.WriteFile(a.path(), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		a = h.agent("a")
		h.do(func() error { a.Set([]netip.AddrPort{netip.AddrPortFrom(elsewhere.Addr(), 40001)}, nil); return nil })
		if len(a.Problems) != 0 {
			t.Errorf("with a file of %q: %v", damage, a.Problems)
		}
	}
	h.leave("a")
	h.expect("the file was damaged: nobody knows any more that it was on", false)
}
