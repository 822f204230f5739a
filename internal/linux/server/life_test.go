package server_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// verify is what every test of a connection's life ends with.
func (r *rig) verify(w *watcher, before map[string]int) {
	r.t.Helper()
	w.verify(r.t)
	if after := r.rejects(); !maps.Equal(after, before) {
		r.t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
}

// Promise: Connections that are older than the agent go by the fallback and are not marked.
func TestConnectionOlderThanTheAgentIsLeftAlone(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	r.listen(false)
	old := []net.Conn{r.dial(r.vips[0]), r.dial(r.vips[1])}
	for _, conn := range old {
		progtest.Check(t, fetch(conn, 1000))
	}
	r.attach("")
	before := r.rejects()
	for range 3 {
		for _, conn := range old {
			progtest.Check(t, fetch(conn, 100000))
		}
		r.browse(4, 1, 1000)
	}
	if r.count("egress_unmarked_older_than_agent") == 0 || r.count("ingress_unmarked") == 0 {
		t.Error("the old connections were not noticed")
	}
	for _, conn := range old {
		conn.Close()
	}
	if after := r.rejects(); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
}

// A handshake that was under way when the agent came is told from the others by what the client echoes. Deferred accept
// holds it there: for the server it is not complete before the client has sent something.
func TestHandshakeFromBeforeTheAgentIsLeftAlone(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	config := net.ListenConfig{Control: setInt(unix.TCP_DEFER_ACCEPT, 30)}
	config.SetMultipathTCP(false)
	r.serve(r.listener(r.vips[0], config))
	old := r.dial(r.vips[0])
	defer old.Close()
	r.attach("")
	young := r.dial(r.vips[0]) // gives the listener its storage
	defer young.Close()
	before := r.rejects()
	progtest.Check(t, fetch(young, 1000))
	for range 3 {
		progtest.Check(t, fetch(old, 100000))
	}
	if r.count("ingress_unmarked") == 0 || r.count("egress_unmarked_older_than_agent") == 0 {
		t.Error("the old handshake was not noticed")
	}
	if after := r.rejects(); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
}

// The kernel answers for a connection request by its listener's socket. The listener's storage is what every connection begins with.
func TestAnswerForARequestLeavesItsListenerAlone(t *testing.T) {
	r := newRig(t, rigOptions{})
	config := net.ListenConfig{Control: setInt(unix.TCP_DEFER_ACCEPT, 30)}
	config.SetMultipathTCP(false)
	r.serve(r.listener(r.vips[0], config))
	before, w := r.rejects(), r.watch()
	first, request := r.dial(r.vips[0]), r.dial(r.vips[0])
	defer first.Close()
	defer request.Close()
	progtest.Check(t, fetch(first, 1000))
	raw, err := request.(*net.TCPConn).SyscallConn()
	progtest.Check(t, err)
	for _, mode := range []int{1, 0} { // the end of repair is announced by a segment from outside the window
		progtest.Check(t, setInt(unix.TCP_REPAIR, mode)("", "", raw))
	}
	r.await("an answer for the request", func() bool { return r.count("egress_marked_no_socket") > 0 })
	for range 4 {
		progtest.Check(t, fetch(r.dial(r.vips[0]), 1000))
	}
	r.verify(w, before)
}

// transfer keeps four connections busy with 30 MB each; the returned function waits for them.
func (r *rig) transfer() (wait func()) {
	var group sync.WaitGroup
	for i := range 4 {
		conn := r.dial(r.vips[i%2])
		group.Go(func() {
			defer conn.Close()
			for range 30 {
				if err := fetch(conn, 1<<20); err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	return group.Wait
}

// Promise: Connections are kept when `ballast agent` is killed or upgraded with the same map layout.
// Also held by TestConnectionsSurviveUpgradeInPlace.
func TestAgentRestartsInTheMidstOfTransfers(t *testing.T) {
	progtest.BothWays(t, restartInTransfers)
}

func restartInTransfers(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.listen(true)
	before, w := r.rejects(), r.watch()
	wait := r.transfer()
	for range 5 {
		r.agent.Close()
		r.attach(dir)
		r.browse(2, 1000)
	}
	wait()
	r.verify(w, before)
	if n := r.count("egress_unmarked_older_than_agent"); n != 0 {
		t.Errorf("%d packets of connections that the new process forgot", n)
	}
}

func TestKeysRotateInTheMidstOfTransfers(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.listen(false)
	r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
	before, w := r.rejects(), r.watch()
	wait := r.transfer()
	for i := range 6 {
		r.fleet.Keys.Current = uint32(2 - i%2)
		r.publish()
		r.browse(2, 1000)
	}
	wait()
	r.verify(w, before)
	if n := r.count("ingress_bad_cookie"); n != 0 {
		t.Errorf("%d echoes of the last key were not recognised", n)
	}
}

func TestServiceThatLeavesKeepsItsConnections(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.listen(false)
	before, w := r.rejects(), r.watch()
	old := r.dial(r.vips[0])
	defer old.Close()
	progtest.Check(t, fetch(old, 1000))
	_, err := r.agent.Serve(nil)
	progtest.Check(t, err)
	for range 3 {
		progtest.Check(t, fetch(old, 100000))
	}
	r.verify(w, before)
}

func TestConnectionsThatAServerLeavesBehindFollowRotations(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.listen(false)
	before := r.rejects()
	old := r.dial(r.vips[0])
	defer old.Close()
	progtest.Check(t, fetch(old, 1000))
	nobody := func(*model.Server) bool { return false }
	for _, epochs := range [][]uint32{{1, 2}, {2}} { // the next key comes, then the old one goes
		keys := map[uint32][16]byte{}
		for _, epoch := range epochs {
			keys[epoch] = [16]byte{byte(epoch)}
		}
		r.fleet.Keys = model.Keys{Placement: r.fleet.Keys.Placement, Current: 2, Cookie: keys}
		left, err := plan.NewAgent(r.fleet, nobody)
		progtest.Check(t, err)
		left.Rekey(r.fleet, r.agent.Served())
		_, err = r.agent.Serve(left.Served)
		progtest.Check(t, err)
		w := r.watch()
		r.await("the client to hear of it", func() bool {
			progtest.Check(t, fetch(old, 1000))
			last, ok := w.flows.Load(netip.MustParseAddrPort(old.LocalAddr().String()))
			return ok && cookie.EpochBit(14, last.(lastSeen).value) == r.fleet.Keys.Current&1
		})
		w.stop()
	}
	w := r.watch()
	progtest.Check(t, fetch(old, 100000))
	r.verify(w, before)
}

// Promise: Loss, reordering and SACK break no connection, and no timestamp is rejected.
func TestLossAndSelectiveAcknowledgement(t *testing.T) {
	progtest.BothWays(t, lossAndSelectiveAcknowledgement)
}

func lossAndSelectiveAcknowledgement(t *testing.T) {
	r := newRig(t, rigOptions{lossy: true})
	r.listen(true)
	for _, wire := range r.wires {
		progtest.Check(t, wire.SetFaults(link.Faults{DropPermille: 20}))
	}
	before, w := r.netstat("TSEcrRejected", "PAWSActive"), r.watch()
	r.browse(12, 1, 1000, 1<<20, 1<<20)
	w.verify(t)
	if after := r.netstat("TSEcrRejected", "PAWSActive"); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
	for _, wire := range r.wires {
		losses, err := wire.Losses()
		progtest.Check(t, err)
		if losses.DroppedRandom == 0 {
			t.Error("nothing was lost")
		}
		t.Logf("%+v", losses)
	}
	t.Log(r.netstat("RetransSegs", "TCPSackRecovery", "TCPDSACKRecv", "PAWSEstab", "TCPFullUndo", "TCPPartialUndo"))
}

// Promise: Half-close, TIME_WAIT, keepalive, Fast Open and MPTCP listeners work with cookies.
// Also held by TestKeepalive and TestFastOpen.
func TestHalfCloseAndTimeWait(t *testing.T) {
	r := newRig(t, rigOptions{table: true})
	listener := r.listener(r.vips[0], net.ListenConfig{})
	tagger, before, w := newTagger(r), r.rejects(), r.watch()
	for i := range 16 {
		tagger.want(firstPort+i, r.vips[0], uint16(i*4))
		conn := r.dialFrom(firstPort+i, r.vips[0])
		accepted, err := listener.Accept()
		progtest.Check(t, err)
		// The server closes its half first: its end is left to a TIME_WAIT socket, which acknowledges the client's FIN.
		progtest.Check(t, accepted.(*net.TCPConn).CloseWrite())
		_, err = conn.Read(make([]byte, 1))
		if !errors.Is(err, io.EOF) {
			t.Fatalf("read: %v", err)
		}
		_, err = conn.Write(make([]byte, 50000))
		progtest.Check(t, err)
		_, err = io.ReadFull(accepted, make([]byte, 50000))
		progtest.Check(t, err)
		accepted.Close()
		progtest.Check(t, conn.Close())
	}
	r.await("TIME_WAIT answers", func() bool {
		return r.count("ingress_restored_time_wait") >= 16 && r.count("egress_marked_no_socket") >= 16
	})
	r.verify(w, before)
	r.expectRestored("half close")
}

func TestKeepalive(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.listen(false)
	before, w := r.rejects(), r.watch()
	conn := r.dial(r.vips[0])
	defer conn.Close()
	progtest.Check(t, conn.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}))
	progtest.Check(t, fetch(conn, 1000))
	r.await("keepalives", func() bool { return r.netstat("TCPKeepAlive")["TCPKeepAlive"] >= 2 })
	progtest.Check(t, fetch(conn, 100000))
	r.verify(w, before)
}

func TestFastOpen(t *testing.T) {
	r := newRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_fastopen": "2"}})
	progtest.Check(t, r.client.Sysctl("net/ipv4/tcp_fastopen", "1"))
	config := net.ListenConfig{Control: setInt(unix.TCP_FASTOPEN, 16)}
	config.SetMultipathTCP(false)
	r.serve(r.listener(r.vips[0], config))
	before, w := r.rejects(), r.watch()
	for i := range 5 {
		var conn net.Conn
		progtest.Check(t, r.client.Do(func() (err error) {
			dialer := net.Dialer{Timeout: progtest.Deadline, FallbackDelay: -1, Control: setInt(unix.TCP_FASTOPEN_CONNECT, 1)}
			dialer.SetMultipathTCP(false)
			conn, err = dialer.Dial("tcp", netip.AddrPortFrom(r.vips[0], servicePort).String())
			return err
		}))
		if err := fetch(conn, 100000); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		conn.Close()
	}
	r.verify(w, before)
	if opened := r.netstat("TCPFastOpenPassive")["TCPFastOpenPassive"]; opened == 0 {
		t.Error("no connection was opened fast")
	}
}

// The wire clock of 16 bits wraps every 65 s and is held back after 16 s.
//
// Promise: A connection is kept over any idle time.
// Also held by TestIdleConnectionsGoOn.
func TestLongSilencesAndWraps(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("takes minutes: set BALLAST_LONG=1")
	}
	for _, bits := range []uint8{16, 14} {
		r := newRig(t, rigOptions{bits: bits})
		r.listen(true)
		before, w := r.rejects(), r.watch()
		idle, active := r.dial(r.vips[0]), r.dial(r.vips[1])
		progtest.Check(t, fetch(idle, 1000))
		for _, silence := range []time.Duration{18 * time.Second, 40 * time.Second, 75 * time.Second} {
			for end := time.Now().Add(silence); time.Now().Before(end); {
				progtest.Check(t, fetch(active, 100000))
				time.Sleep(50 * time.Millisecond) // what is tested is time
			}
			progtest.Check(t, fetch(idle, 100000))
		}
		if r.count("egress_marked_held_back") == 0 {
			t.Error("never held back")
		}
		r.verify(w, before)
		idle.Close()
		active.Close()
	}
}

func setInt(option, value int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value)
		}), err)
	}
}

func (r *rig) listener(vip netip.Addr, config net.ListenConfig) (listener net.Listener) {
	r.t.Helper()
	progtest.Check(r.t, r.server.Do(func() (err error) {
		listener, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(vip, servicePort).String())
		return err
	}))
	r.t.Cleanup(func() { listener.Close() })
	return listener
}

func (r *rig) await(what string, done func() bool) {
	r.t.Helper()
	for end := time.Now().Add(progtest.Deadline); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			counters, _ := r.agent.Counters()
			r.t.Fatalf("waited for %s: %v", what, counters)
		}
	}
}
