package server_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// sharing lets listeners share a port; extra options come with it.
func sharing(options ...func(fd int) error) net.ListenConfig {
	config := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			for _, option := range options {
				err = errors.Join(err, option(int(fd)))
			}
		}), err)
	}}
	config.SetMultipathTCP(false)
	return config
}

func deferAccept(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 30)
}

// toSecond has a program of the group give every connection to the second listener.
func toSecond(fd int) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{
		Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}})
}

// As after a reload of nginx or haproxy: requests move to a listener that has not accepted anything yet.
//
// Promise: A connection is kept when another listener accepts it than the one that answered the SYN
// (`tcp_migrate_req`, SO_REUSEPORT).
// Also held by TestConnectionsThatAProgramSpreadsOverListenersCarryCookies.
func TestConnectionsWhoseRequestsMoveToAnotherListenerCarryCookies(t *testing.T) {
	r := newRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_migrate_req": "1"}})
	before, w := r.rejects(), r.watch()
	var old []net.Listener
	for _, vip := range r.vips {
		old = append(old, r.listener(vip, sharing(deferAccept)))
	}
	var connections []net.Conn
	for i := range 12 {
		connections = append(connections, r.dial(r.vips[i%2]))
	}
	for i, vip := range r.vips {
		r.serve(r.listener(vip, sharing()))
		progtest.Check(t, old[i].Close())
	}
	for _, conn := range connections {
		defer conn.Close()
		progtest.Check(t, fetch(conn, 1))
		progtest.Check(t, fetch(conn, 100000))
	}
	if moved := r.netstat("TCPMigrateReqSuccess")["TCPMigrateReqSuccess"]; moved != len(connections) {
		t.Errorf("%d requests moved", moved)
	}
	r.verify(w, before)
	if n := r.count("egress_unmarked_older_than_agent") + r.count("ingress_unmarked"); n != 0 {
		t.Errorf("%d packets of new connections were taken for older than the agent", n)
	}
}

// The program of a group of listeners chooses another one than a look-up without a packet finds.
func TestConnectionsThatAProgramSpreadsOverListenersCarryCookies(t *testing.T) {
	for _, cookies := range []string{"1", "2"} {
		r := newRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": cookies}})
		before, w := r.rejects(), r.watch()
		for _, vip := range r.vips {
			first, second := r.listener(vip, sharing()), r.listener(vip, sharing())
			raw, err := first.(*net.TCPListener).SyscallConn()
			progtest.Check(t, err)
			progtest.Check(t, raw.Control(func(fd uintptr) { progtest.Check(t, toSecond(int(fd))) }))
			r.serve(first)
			r.serve(second)
		}
		for range 5 {
			r.browse(8, 1, 100000)
		}
		r.verify(w, before)
		if n := r.count("egress_unmarked_older_than_agent") + r.count("ingress_unmarked"); n != 0 {
			t.Errorf("tcp_syncookies=%s: %d packets of new connections were taken for older than the agent", cookies, n)
		}
	}
}

// Nothing was said between the handshake and the agent's coming; then the server speaks first, or the client.
func TestSilentConnectionsFromBeforeTheAgentAreLeftAlone(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	var ends [][2]net.Conn
	for _, vip := range r.vips {
		listener := r.listener(vip, sharing())
		for range 2 {
			client := r.dial(vip)
			server, err := listener.Accept()
			progtest.Check(t, err)
			t.Cleanup(func() { client.Close(); server.Close() })
			ends = append(ends, [2]net.Conn{server, client})
		}
	}
	r.attach("")
	before := r.rejects()
	for i, pair := range ends {
		for turn := range 4 {
			from, to := pair[(i+turn)%2], pair[(i+turn+1)%2]
			from.SetDeadline(time.Now().Add(progtest.Deadline))
			to.SetDeadline(time.Now().Add(progtest.Deadline))
			_, err := from.Write([]byte("hello"))
			progtest.Check(t, err)
			_, err = io.ReadFull(to, make([]byte, 5))
			progtest.Check(t, err)
		}
	}
	if after := r.rejects(); !maps.Equal(after, before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
	if r.count("egress_marked") != 0 || r.count("egress_unmarked_older_than_agent") == 0 {
		t.Error("connections from before were marked")
	}
}
