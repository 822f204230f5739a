package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// begun is what a server's kernel knows of connections that a load balancer has begun.
type begun struct {
	*rig
	infos chan *unix.TCPInfo
}

func newBegun(t *testing.T, mode attach.XDPMode) (*begun, *lb.LB, *plan.Tables) {
	t.Helper()
	b := &begun{newSessionRig(t, rigOptions{lossy: true, mode: mode}), make(chan *unix.TCPInfo, 100)} // it loses nothing unless it is told to
	lb, tables := b.balance()
	for _, vip := range b.vips {
		listener := b.listener(vip, sharing())
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				raw, _ := conn.(*net.TCPConn).SyscallConn()
				raw.Control(func(fd uintptr) {
					info, _ := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
					b.infos <- info
				})
				go answer(conn)
			}
		}()
	}
	return b, lb, tables
}

// converse uploads and downloads, and returns what the server's kernel knows of the connection.
func (b *begun) converse(vip netip.Addr, control func(string, string, syscall.RawConn) error) (*unix.TCPInfo, error) {
	var conn net.Conn
	err := b.client.Do(func() (err error) {
		dialer := net.Dialer{Timeout: progtest.Deadline, Control: control, KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		conn, err = dialer.Dial("tcp", netip.AddrPortFrom(vip, servicePort).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	progtest.Check(b.t, conn.SetDeadline(deadline()))
	_, err = conn.Write(bytes.Repeat(binary.BigEndian.AppendUint64(nil, 0), 15_000)) // requests for nothing, more than the first window
	if err = errors.Join(err, fetch(conn, 200_000)); err != nil {
		return nil, err
	}
	return <-b.infos, nil
}

func TestConnectionsAreTakenOverWhateverTheWayAndTheOptions(t *testing.T) {
	const timestamps, sack, scale, ecn = 1, 2, 4, 8 // TCPI_OPT_*
	b, lb, tables := newBegun(t, "")
	before := b.rejects()
	for i, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		for j, server := range []string{"10.8.0.2", "fd08::2"} {
			changes, err := tables.Update(b.want(netip.MustParseAddr(server), forward))
			progtest.Check(t, err)
			progtest.Check(t, lb.Apply(changes))
			for k, off := range []struct {
				setting string
				options uint8
			}{{"", timestamps | sack | scale}, {"tcp_timestamps", sack | scale}, {"tcp_sack", timestamps | scale}, {"tcp_window_scaling", timestamps | sack},
				{"tcp_ecn", timestamps | sack | scale | ecn}} {
				if k != (2*i+j)%5 && os.Getenv("BALLAST_LONG") == "" { // a way for each of them, and each of the ways
					continue
				}
				if off.setting == "tcp_ecn" { // the client asks for it
					progtest.Check(t, b.client.Sysctl("net/ipv4/tcp_ecn", "1"))
				} else if off.setting != "" {
					progtest.Check(t, b.client.Sysctl("net/ipv4/"+off.setting, "0"))
				}
				for _, vip := range b.vips {
					name := fmt.Sprintf("%s by %s to %s, %s", vip, forward, server, off.setting)
					taken := b.count("ingress_taken_over") + b.count("ingress_taken_over_unmarked")
					info, err := b.converse(vip, nil)
					if err != nil {
						t.Fatalf("%s: %v; %v", name, err, b.counts())
					}
					if n := b.count("ingress_taken_over") + b.count("ingress_taken_over_unmarked") - taken; n != 1 {
						t.Errorf("%s: %d were taken over", name, n)
					}
					if info.Options&15 != off.options {
						t.Errorf("%s: options %#x, want %#x", name, info.Options, off.options)
					}
				}
				switch off.setting {
				case "":
				case "tcp_ecn":
					progtest.Check(t, b.client.Sysctl("net/ipv4/tcp_ecn", "2"))
				default:
					progtest.Check(t, b.client.Sysctl("net/ipv4/"+off.setting, "1"))
				}
			}
		}
	}
	b.ignoresFastOpen()
	if after := b.rejects(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
	if n := b.count("ingress_bad_cookie"); n != 0 {
		t.Errorf("%d bad cookies", n)
	}
}

// ignoresFastOpen: what a SYN asks for, and carries, beyond what load balancers answer.
func (b *begun) ignoresFastOpen() {
	taken := b.count("ingress_taken_over")
	for i, setting := range []string{"1", "5"} { // a cookie is asked for; data in the SYN without
		progtest.Check(b.t, b.client.Sysctl("net/ipv4/tcp_fastopen", setting))
		if _, err := b.converse(b.vips[i], func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1) }), err)
		}); err != nil {
			b.t.Errorf("tcp_fastopen=%s: %v", setting, err)
		}
	}
	if n := b.count("ingress_taken_over") - taken; n != 2 {
		b.t.Errorf("%d were taken over", n)
	}
}

// A real client uses its port again: the server's TIME_WAIT is there yet, or the connection that the client has forgotten.
func TestARealClientUsesItsPortAgain(t *testing.T) {
	modes := []attach.XDPMode{attach.XDPNative, attach.XDPGeneric}
	if os.Getenv("BALLAST_LONG") == "" {
		modes = modes[1:]
	}
	for _, mode := range modes {
		b, lb, tables := newBegun(t, mode)
		for i, forward := range []model.Forward{model.ForwardIPIP, model.ForwardL2} {
			changes, err := tables.Update(b.want(netip.MustParseAddr([]string{"10.8.0.2", "fd08::2"}[i]), forward))
			progtest.Check(t, err)
			progtest.Check(t, lb.Apply(changes))
			for _, vip := range b.vips {
				made := b.count("ingress_made_way")
				for n := range uint64(3) {
					conn := b.dialFrom(30000+i, vip)
					if err := fetch(conn, 1000); err != nil {
						t.Fatalf("%s, %s by %s: connection %d: %v; %v", mode, vip, forward, n, err, b.counts())
					}
					if have := b.count("ingress_made_way") - made; have != n {
						t.Errorf("%s, %s by %s: way was made %d times before connection %d", mode, vip, forward, have, n)
					}
					vanish(t, conn)
				}
			}
		}
	}
}

// vanish ends a client's connection without a word.
func vanish(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	progtest.Check(t, err)
	progtest.Check(t, raw.Control(func(fd uintptr) { progtest.Check(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)) }))
	progtest.Check(t, conn.Close())
}
