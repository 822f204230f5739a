package server_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// redirected is a rig whose service's port is redirected, with room for so many connections; 0: as the memory is. again starts another
// process of the agent's.
func redirected(t *testing.T, room uint32) (r *rig, again func()) {
	t.Helper()
	r = newRig(t, rigOptions{plain: true})
	dir := r.pins()
	if room != 0 { // maps that are there keep their room
		first, err := server.Open(dir, server.Limits{Translated: room})
		progtest.Check(t, errors.Join(err, first.Close()))
	}
	r.attach(dir)
	r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
	r.listenAt(r.server, ":17011")
	return r, func() {
		progtest.Check(t, r.agent.Close())
		r.attach(dir)
	}
}

func (r *rig) sweep(ages bool) server.TranslatedUse {
	r.t.Helper()
	use, err := r.agent.SweepTranslated(ages)
	progtest.Check(r.t, err)
	return use
}

// awaitEntries waits until walks have left so many entries.
func (r *rig) awaitEntries(want uint32) {
	r.t.Helper()
	await.Nil(r.t, fmt.Sprintf("%d entries", want), func() error {
		if use := r.sweep(false); use.Entries != want || use.Evicted != 0 {
			return fmt.Errorf("there are %+v", use)
		}
		return nil
	})
}

// An entry is there as long as its connection, and no longer.
func TestEntriesOfTranslatedConnectionsEndWithThem(t *testing.T) {
	r, _ := redirected(t, 0)
	before, w := r.rejects(), r.watch()
	living, half, reset, gone := r.dial(r.vips[0]), r.dial(r.vips[1]), r.dial(r.vips[0]), r.dial(r.vips[1])
	for _, conn := range []net.Conn{living, half, reset, gone} {
		defer conn.Close()
		progtest.Check(t, fetch(conn, 1000))
	}
	if use := r.sweep(false); use.Entries != 4 || use.Room < 1<<16 || use.Evicted != 0 {
		t.Errorf("at first: %+v", use)
	}
	progtest.Check(t, errors.Join(binary.Write(half, binary.BigEndian, uint64(100000)), half.(*net.TCPConn).CloseWrite())) // what was asked for comes yet
	progtest.Check(t, errors.Join(reset.(*net.TCPConn).SetLinger(0), reset.Close(), gone.Close()))
	n, err := io.Copy(io.Discard, half)
	progtest.Check(t, err)
	if n != 100000 {
		t.Errorf("%d bytes came after the client's end", n)
	}
	progtest.Check(t, half.Close())
	r.awaitEntries(1)
	for range 10 {
		progtest.Check(t, fetch(living, 1000))
		if use := r.sweep(true); use.Entries != 1 {
			t.Fatalf("one lives: %+v", use)
		}
	}
	r.verify(w, before)
}

// One side alone does not end a connection.
func TestHalfClosedTranslatedConnectionsKeepTheirEntries(t *testing.T) {
	r, _ := redirected(t, 0)
	conn := r.dial(r.vips[0])
	defer conn.Close()
	progtest.Check(t, fetch(conn, 1000))
	progtest.Check(t, conn.(*net.TCPConn).CloseWrite())
	_, err := io.Copy(io.Discard, conn) // the server's end comes with its own
	progtest.Check(t, err)
	r.awaitEntries(0)

	lingering := r.dial(r.vips[0])
	defer lingering.Close()
	progtest.Check(t, errors.Join(binary.Write(lingering, binary.BigEndian, uint64(64<<20)), lingering.(*net.TCPConn).CloseWrite())) // nobody reads it yet
	for range 20 {
		if use := r.sweep(false); use.Entries != 1 {
			t.Fatalf("half of it lives: %+v", use)
		}
	}
}

// A connection that translation has forgotten is silent for long: it takes no room for ever, and one that speaks keeps its own.
func TestSilentTranslatedConnectionsAreFreedLate(t *testing.T) {
	r, _ := redirected(t, 0)
	silent, speaking := r.dial(r.vips[0]), r.dial(r.vips[1])
	defer silent.Close()
	defer speaking.Close()
	progtest.Check(t, errors.Join(fetch(silent, 1000), fetch(speaking, 1000)))
	for i := range server.SilentSweeps {
		if use := r.sweep(true); use.Entries != 2 {
			t.Fatalf("after %d sweeps: %+v", i, use)
		}
		progtest.Check(t, fetch(speaking, 1000))
	}
	if use := r.sweep(true); use.Entries != 1 || use.Evicted != 0 {
		t.Errorf("in the end: %+v", use)
	}
	marked := r.count("egress_marked_translated")
	progtest.Check(t, fetch(speaking, 1000))
	if r.count("egress_marked_translated") == marked {
		t.Error("the one that speaks carries no cookie")
	}
}

// Who has no room is counted, and a process of later keeps the room and what is in it.
func TestTranslatedConnectionsWithoutRoomAreCounted(t *testing.T) {
	const room, many = 1024, 2500
	r, again := redirected(t, room)
	if use := r.sweep(false); use != (server.TranslatedUse{Room: room}) {
		t.Errorf("at first: %+v", use)
	}
	for range many {
		conn := r.dial(r.vips[0])
		defer conn.Close()
		progtest.Check(t, conn.SetDeadline(time.Now().Add(progtest.Deadline)))
		progtest.Check(t, fetch(conn, 10))
	}
	use := r.sweep(false)
	if use.Entries > room || use.Entries < room/2 || uint64(use.Entries)+use.Evicted != many {
		t.Errorf("%d connections: %+v", many, use)
	}
	again()
	if next := r.sweep(false); next != (server.TranslatedUse{Entries: use.Entries, Room: room}) {
		t.Errorf("the next process has %+v", next)
	}
}
