package server_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/plan"
)

// eachClient runs a test with clients by hand of both address families, with timestamps and without. None of them may get an RST.
func eachClient(t *testing.T, r *rig, config net.ListenConfig, test func(c *byHand, listener net.Listener)) {
	t.Helper()
	for _, vip := range r.vips {
		for _, timestamps := range []bool{true, false} {
			listener, c := r.listener(vip, config), r.byHand(vip)
			c.timestamps = timestamps
			c.begin()
			resets := r.netstat("OutRsts")["OutRsts"]
			test(c, listener)
			if n := r.netstat("OutRsts")["OutRsts"] - resets; n != 0 {
				t.Errorf("%s, timestamps %v: %d RSTs; %v", vip, timestamps, n, c.counts())
			}
			progtest.Check(t, listener.Close())
		}
	}
}

// Whatever the first packets with data look like, and whoever listens.
//
// Promise: When the segments of a hello overtake each other on the way to the server, or are merged there, what
// comes before the first is dropped and sent again, without RST.
// Promise: A hello that meets a full accept queue is lost, and the client sends it again.
func TestHellosAreTakenOver(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for name, test := range map[string]func(*testing.T, *rig){
		"in several segments": inSeveralSegments, "the first segment last": firstComesLast, "merged": merged, "more than the window": moreThanTheWindow,
		"with FIN": withFIN, "then RST": thenRST, "after empty segments": afterEmptySegments, "deferred": deferred, "to MPTCP": toMultipath, "to a full queue": toAFullQueue,
	} {
		r.t.Log(name)
		test(t, r)
	}
}

// taken is what the first packet with data is counted as.
func (c *byHand) taken() string {
	if c.timestamps {
		return "ingress_taken_over"
	}
	return "ingress_taken_over_unmarked"
}

func (c *byHand) expectCount(what string, by uint64, verdict string, do func()) {
	c.t.Helper()
	before := c.count(verdict)
	do()
	c.await(what+": "+verdict, func() bool { return c.count(verdict) >= before+by })
	if n := c.count(verdict) - before; n != by {
		c.t.Errorf("%s: %d %s, want %d", what, n, verdict, by)
	}
}

// A SYN cookie is good for its own period and four more. Ages of whole periods differ by one where a period ends meanwhile, so 4 is not tried.
func TestAnExpiredSYNCookieIsNotTakenOver(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		listener, c := r.listener(vip, sharing()), r.byHand(vip)
		for age, verdict := range map[uint64]string{0: "ingress_taken_over", 3: "ingress_taken_over", 5: "ingress_dropped_before"} {
			c.port++
			c.beginAt(uint64(time.Now().Unix()) - age*syncookie.PeriodSeconds)
			c.expectCount(fmt.Sprintf("%s, %d periods old", vip, age), 1, verdict, func() { c.send(0, "hello") })
			if verdict == "ingress_taken_over" {
				progtest.Check(t, c.accept(listener, "hello").Close())
			}
		}
		progtest.Check(t, listener.Close())
	}
}

// Load balancers of version 0.1 have hashed the client's sequence number. A client that one of them has answered reaches a server that was upgraded first.
func TestASYNCookieOfVersion01IsTakenOver(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		listener, c := r.listener(vip, sharing()), r.byHand(vip)
		for _, timestamps := range []bool{true, false} {
			c.timestamps = timestamps
			c.port++
			c.begin()
			message := slices.Concat(c.address.AsSlice(), make([]byte, 14))
			rest := message[len(message)-14:]
			binary.BigEndian.PutUint16(rest, c.port)
			binary.BigEndian.PutUint16(rest[2:], servicePort)
			binary.BigEndian.PutUint32(rest[4:], c.sequence)
			binary.BigEndian.PutUint32(rest[8:], c.echo)
			binary.BigEndian.PutUint16(rest[12:], uint16(c.number&0xfff))
			key := plan.SYNCookieKey(&c.fleet.Keys, vip)
			c.number = uint32(siphash.Sum24(key.K0, key.K1, message)>>44)<<12 | c.number&0xfff
			c.received = c.number + 1
			c.expectCount("of version 0.1", 1, c.taken(), func() { c.send(0, "hello") })
			progtest.Check(t, c.accept(listener, "hello").Close())
		}
		progtest.Check(t, listener.Close())
	}
}

func inSeveralSegments(t *testing.T, r *rig) {
	before, bad := r.rejects(), r.count("ingress_bad_cookie")
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		later := map[bool]string{true: "ingress_restored", false: "ingress_no_timestamp"}[c.timestamps]
		c.expectCount("the first", 1, c.taken(), func() { c.send(0, "one") })
		conn := c.accept(listener, "one")
		c.expectCount("what follows", 2, later, func() { c.send(3, "two"); c.send(6, "three") })
		read(t, conn, "twothree")
		c.expectCount("the first again", 1, later, func() { c.send(0, "one") })
		progtest.Check(t, write(conn, "answer")) // which is lost
		c.expectCount("before the client has heard of it", 1, later, func() { c.send(11, "four") })
		read(t, conn, "four")
		c.received = c.expect("answer", func(tcp *layers.TCP) bool { return string(tcp.Payload) == "answer" && tcp.Ack == c.sequence+1+15 }).Seq + 6
		c.clock++
		c.send(15, "five")
		read(t, conn, "five")
	})
	if n := r.count("ingress_bad_cookie") - bad; n != 0 {
		t.Errorf("%d bad cookies", n)
	}
	if after := r.rejects(); after["PAWSEstab"] != before["PAWSEstab"] || after["TSEcrRejected"] != before["TSEcrRejected"] {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
}

func write(conn net.Conn, text string) error {
	_, err := conn.Write([]byte(text))
	return err
}

func firstComesLast(t *testing.T, r *rig) {
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.expectCount("before the first", 4, "ingress_dropped_before", func() {
			for range 2 {
				c.send(6, "three")
				c.send(3, "two")
			}
		})
		c.expectCount("the first", 1, c.taken(), func() { c.send(0, "one") })
		conn := c.accept(listener, "one")
		c.send(6, "three")
		c.send(3, "two")
		read(t, conn, "twothree")
		c.talk(conn, 11)
	})
}

func merged(t *testing.T, r *rig) {
	progtest.Check(t, r.server.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change("eth0", map[string]bool{"rx-gro": true})
	}))
	hello := strings.Repeat("0123456789", 1700)
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		packets := func() uint64 {
			return c.count("ingress_dropped_before") + c.count("ingress_restored") + c.count("ingress_no_timestamp")
		}
		others := packets()
		c.expectCount("all of it", 1, c.taken(), func() { c.sendAtOnce(0, hello, 1400) })
		conn := c.accept(listener, hello)
		if n := packets() - others; n != 0 {
			t.Errorf("%d packets besides", n)
		}
		if n := segmentsIn(t, conn); n != 13+1 { // and the SYN, as it believes
			t.Errorf("the kernel has got %d segments", n)
		}
		c.talk(conn, uint32(len(hello)))
	})
}

// segmentsIn is how many a server's connection has received.
func segmentsIn(t *testing.T, conn net.Conn) (n uint32) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	progtest.Check(t, err)
	progtest.Check(t, errors.Join(raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		progtest.Check(t, err)
		n = info.Segs_in
	})))
	return n
}

// A load balancer's answer promises 64,240 bytes. Clients that send more at once get no RST.
func moreThanTheWindow(t *testing.T, r *rig) {
	promised, excess := strings.Repeat("x", 64240), strings.Repeat("y", 30000)
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.sendAtOnce(0, promised[:40000], 1400)
		conn := c.accept(listener, "")
		c.sendAtOnce(40000, promised[40000:], 1400)
		c.sendAtOnce(uint32(len(promised)), excess, 1400)
		read(t, conn, promised)
		c.sendAtOnce(uint32(len(promised)), excess, 1400)
		read(t, conn, excess)
	})
}

func withFIN(t *testing.T, r *rig) {
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.send(0, "hello", fin)
		conn := c.accept(listener, "hello")
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes, %v", n, err)
		}
		c.begin() // nothing but a FIN
		c.port++
		c.begin()
		c.send(0, "", fin)
		conn = c.accept(listener, "")
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

func thenRST(t *testing.T, r *rig) {
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.send(0, "hello")
		conn := c.accept(listener, "hello")
		c.send(5, "", func(tcp *layers.TCP) { tcp.RST, tcp.ACK = true, false })
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
	})
}

// Also what load balancers drop may come, from those of before.
func afterEmptySegments(t *testing.T, r *rig) {
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.expectCount("the end of the handshake", 1, "ingress_dropped_before", func() { c.send(0, "") })
		c.expectCount("a keepalive's probe", 1, "ingress_dropped_before", func() { c.send(^uint32(0), "") })
		c.expectCount("a probe with a byte", 1, "ingress_dropped_before", func() { c.send(^uint32(0), "x") })
		c.send(0, "hello")
		c.talk(c.accept(listener, "hello"), 5)
	})
}

func deferred(t *testing.T, r *rig) {
	eachClient(t, r, sharing(deferAccept), func(c *byHand, listener net.Listener) {
		c.send(0, "hello")
		c.talk(c.accept(listener, "hello"), 5)
	})
}

func TestSettingsOfSYNCookies(t *testing.T) {
	for _, setting := range []string{"0", "2"} {
		r := newSessionRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": setting}})
		if setting == "0" {
			if err := r.server.Do(server.TakesOver); err == nil || !strings.Contains(err.Error(), "tcp_syncookies") {
				t.Error(err)
			}
			c := r.byHand(r.vips[0])
			r.listener(c.vip, sharing())
			c.send(0, "hello")
			c.expect("RST", func(tcp *layers.TCP) bool { return tcp.RST })
			continue
		}
		progtest.Check(t, r.server.Do(server.TakesOver))
		eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
			c.send(0, "hello")
			c.talk(c.accept(listener, "hello"), 5)
		})
	}
}

// As for handshakes of the kernel's own, the client sends again.
func toAFullQueue(t *testing.T, r *rig) {
	for _, vip := range r.vips {
		listener, overflows := r.listener(vip, sharing()), func() int { return r.netstat("ListenOverflows")["ListenOverflows"] }
		raw, err := listener.(*net.TCPListener).SyscallConn()
		progtest.Check(t, err)
		progtest.Check(t, raw.Control(func(fd uintptr) { progtest.Check(t, unix.Listen(int(fd), 1)) }))
		var clients []*byHand
		before, resets := overflows(), r.netstat("OutRsts")["OutRsts"]
		for range 5 { // two have room
			c := r.byHand(vip)
			c.expectCount("a client", 1, c.taken(), func() { c.send(0, "hello") })
			clients = append(clients, c)
		}
		r.await("an overflow", func() bool { return overflows()-before == 3 })
		for i, c := range clients {
			if i >= 2 {
				c.send(0, "hello")
			}
			c.talk(c.accept(listener, "hello"), 5)
		}
		if n := r.netstat("OutRsts")["OutRsts"] - resets; n != 0 {
			t.Errorf("%d RSTs", n)
		}
		progtest.Check(t, listener.Close())
	}
}

// A group of listeners shares what is taken over, also one with a program; a wildcard is as good as the address.
func TestWhoListensGetsWhatIsTakenOver(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for name, setup := range map[string]func(r *rig, vip netip.Addr) (want, others []net.Listener){
		"a group": func(r *rig, vip netip.Addr) (want, others []net.Listener) {
			return []net.Listener{r.listener(vip, sharing()), r.listener(vip, sharing())}, nil
		},
		"a group with a program": func(r *rig, vip netip.Addr) (want, others []net.Listener) {
			first, second := r.listener(vip, sharing()), r.listener(vip, sharing())
			raw, err := first.(*net.TCPListener).SyscallConn()
			progtest.Check(t, err)
			progtest.Check(t, raw.Control(func(fd uintptr) { progtest.Check(t, toSecond(int(fd))) }))
			return []net.Listener{second}, []net.Listener{first}
		},
		"a wildcard": func(r *rig, vip netip.Addr) (want, others []net.Listener) {
			return []net.Listener{r.listener(netip.IPv6Unspecified(), sharing())}, nil
		},
		"a wildcard, and the address": func(r *rig, vip netip.Addr) (want, others []net.Listener) {
			any := netip.IPv4Unspecified()
			if vip.Is6() {
				any = netip.IPv6Unspecified()
			}
			return []net.Listener{r.listener(vip, sharing())}, []net.Listener{r.listener(any, sharing())}
		},
	} {
		for _, vip := range r.vips {
			want, others := setup(r, vip)
			accepted := make(chan net.Conn, 100)
			for _, listener := range want {
				go func() {
					for {
						conn, err := listener.Accept()
						if err != nil {
							return
						}
						accepted <- conn
					}
				}()
			}
			for range 6 {
				c := r.byHand(vip)
				c.send(0, "hello")
				select {
				case conn := <-accepted:
					read(t, conn, "hello")
					c.talk(conn, 5)
					conn.Close()
				case <-time.After(progtest.Deadline):
					t.Fatalf("%s, %s: nobody gets a connection; %v", name, vip, c.counts())
				}
			}
			for _, listener := range append(want, others...) {
				progtest.Check(t, listener.Close())
			}
		}
	}
}

// Status and doctor say why.
func toMultipath(t *testing.T, r *rig) {
	multipath := net.ListenConfig{}
	multipath.SetMultipathTCP(true)
	eachClient(t, r, multipath, func(c *byHand, _ net.Listener) {
		c.expectCount("refused", 1, "ingress_not_taken_over", func() { c.send(0, "hello") })
	})
}
