package server_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// olderConnections are what a server may still have of a client that uses its port again, and how to bring that about.
var olderConnections = map[string]func(c *byHand, listener net.Listener) net.Conn{
	"established": func(c *byHand, listener net.Listener) net.Conn {
		return c.older(listener)
	},
	"CLOSE_WAIT": func(c *byHand, listener net.Listener) net.Conn {
		conn := c.older(listener)
		c.send(5, "", fin)
		c.expect("acknowledgement", func(tcp *layers.TCP) bool { return tcp.Ack == c.sequence+1+5+1 })
		return conn
	},
	"FIN_WAIT2": func(c *byHand, listener net.Listener) net.Conn {
		conn := c.older(listener)
		progtest.Check(c.t, conn.(*net.TCPConn).CloseWrite())
		c.received = c.expect("FIN", func(tcp *layers.TCP) bool { return tcp.FIN }).Seq + 1
		c.send(5, "")
		return conn
	},
	"FIN_WAIT1": func(c *byHand, listener net.Listener) net.Conn {
		conn := c.older(listener)
		progtest.Check(c.t, conn.(*net.TCPConn).CloseWrite())
		c.expect("FIN", func(tcp *layers.TCP) bool { return tcp.FIN })
		return conn
	},
	"LAST_ACK": func(c *byHand, listener net.Listener) net.Conn {
		conn := c.older(listener)
		c.send(5, "", fin)
		c.expect("acknowledgement", func(tcp *layers.TCP) bool { return tcp.Ack == c.sequence+1+5+1 })
		progtest.Check(c.t, conn.Close())
		c.expect("FIN", func(tcp *layers.TCP) bool { return tcp.FIN })
		return nil
	},
	"FIN_WAIT2 of nobody": func(c *byHand, listener net.Listener) net.Conn {
		conn := c.older(listener)
		progtest.Check(c.t, conn.Close())
		c.received = c.expect("FIN", func(tcp *layers.TCP) bool { return tcp.FIN }).Seq + 1
		c.send(5, "")
		return nil
	},
	"TIME_WAIT": func(c *byHand, listener net.Listener) net.Conn {
		c.wait(listener)
		return nil
	},
	"a request": func(c *byHand, listener net.Listener) net.Conn {
		c.send(0, "", func(tcp *layers.TCP) {
			tcp.SYN, tcp.ACK, tcp.Seq, tcp.Ack = true, false, c.sequence, 0
			if c.timestamps {
				copy(tcp.Options[2].OptionData[4:], []byte{0, 0, 0, 0})
			}
		})
		c.expect("SYN-ACK", func(tcp *layers.TCP) bool { return tcp.SYN })
		return nil
	},
}

// older begins a connection that the server has answered on.
func (c *byHand) older(listener net.Listener) net.Conn {
	c.t.Helper()
	c.send(0, "older")
	conn := c.accept(listener, "older")
	c.talk(conn, 5)
	return conn
}

// wait has the server close a connection first.
func (c *byHand) wait(listener net.Listener) {
	c.t.Helper()
	conn := c.older(listener)
	progtest.Check(c.t, conn.Close())
	c.received = c.expect("FIN", func(tcp *layers.TCP) bool { return tcp.FIN }).Seq + 1
	c.send(5, "", fin)
	c.expect("acknowledgement", func(tcp *layers.TCP) bool { return tcp.Ack == c.sequence+1+5+1 })
}

// again begins another connection from the same port, and sends again what is lost, as clients do: way is made at most ten times a second.
func (c *byHand) again(listener net.Listener) net.Conn {
	c.t.Helper()
	c.begin()
	before, last := c.count("ingress_taken_over")+c.count("ingress_taken_over_unmarked"), deadline()
	for time.Now().Before(last) {
		c.send(0, "newer")
		for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if c.count("ingress_taken_over")+c.count("ingress_taken_over_unmarked") > before {
				return c.accept(listener, "newer")
			}
		}
	}
	c.t.Fatalf("a port is not used again; %v", c.counts())
	return nil
}

// Promise: When a client reuses a port whose connection or TIME_WAIT the server still has, proof of the new
// handshake ends the old one, and the new connection goes on at once.
// Also held by TestARealClientUsesItsPortAgain.
func TestAClientUsesAPortAgain(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		listener := r.listener(vip, sharing())
		for name, before := range olderConnections {
			for _, timestamps := range []bool{true, false} {
				if !timestamps && name != "TIME_WAIT" {
					continue // a living connection of a client without timestamps is not ended
				}
				c := r.byHand(vip)
				c.timestamps = timestamps
				c.begin()
				old := before(c, listener)
				made := r.count("ingress_made_way")
				for again := range 2 {
					conn := c.again(listener)
					if n := r.count("ingress_made_way") - made; n != uint64(again+1) {
						t.Errorf("%s: way was made %d times", name, n)
					}
					c.talk(conn, 5)
					if old != nil {
						progtest.Check(t, old.SetDeadline(deadline()))
						if _, err := old.Read(make([]byte, 1)); name != "CLOSE_WAIT" && !errors.Is(err, unix.ECONNRESET) || err == nil {
							t.Errorf("%s: the older connection: %v", name, err)
						}
						if _, err := old.Write([]byte("x")); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
							t.Errorf("%s: the older connection: %v", name, err)
						}
					}
					if old = conn; !timestamps {
						break // see above
					}
				}
			}
		}
	}
}

// What comes late of a connection that waits does not begin it again.
//
// Promise: Late, repeated or forged hellos of a connection in TIME_WAIT are dropped, and the connection stays.
// Also held by TestForgersEndNoConnection.
func TestALateHelloOfAConnectionThatWaitsIsDropped(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		for _, timestamps := range []bool{true, false} {
			listener := r.listener(vip, sharing())
			c := r.byHand(vip)
			c.timestamps = timestamps
			c.begin()
			echo, acknowledged := c.echo, c.received
			c.wait(listener)
			c.echo, c.received, c.clock = echo, acknowledged, c.clock-1
			before, made := r.count("ingress_dropped_before"), r.count("ingress_made_way")
			c.send(0, "older")
			r.await("the late hello", func() bool { return r.count("ingress_dropped_before") > before })
			if r.count("ingress_made_way") != made {
				t.Errorf("%s, timestamps %v: it begins again", vip, timestamps)
			}
			progtest.Check(t, listener.Close())
		}
	}
}

// Only who has the answer of a load balancer ends what is there.
func TestForgersEndNoConnection(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		listener := r.listener(vip, sharing())
		for _, timestamps := range []bool{true, false} {
			c := r.byHand(vip)
			c.timestamps = timestamps
			c.begin()
			conn := c.older(listener)
			sequence, received, echo := c.sequence, c.received, c.echo
			forge := func(what, verdict string, change func(*layers.TCP)) {
				t.Helper()
				before := r.count(verdict)
				c.begin()
				c.send(0, "newer", change)
				r.await(what+": "+verdict, func() bool { return r.count(verdict) > before })
			}
			bad := map[bool]string{true: "ingress_dropped_before", false: "ingress_no_timestamp"}[timestamps]
			for bit := range 20 {
				forge("another MAC", bad, func(tcp *layers.TCP) { tcp.Ack ^= 1 << (12 + bit) })
			}
			forge("another sequence number", bad, func(tcp *layers.TCP) { tcp.Seq++ })
			forge("an old period", bad, func(tcp *layers.TCP) { tcp.Ack = (tcp.Ack - 1) ^ 4<<9 + 1 })
			forge("a RST", map[bool]string{true: "ingress_dropped_before", false: "ingress_no_timestamp"}[timestamps], func(tcp *layers.TCP) { tcp.RST = true })
			if timestamps {
				forge("no timestamp", "ingress_no_timestamp", func(tcp *layers.TCP) { tcp.Options = nil })
				for bit := range 14 { // of which one is the epoch's
					forge("another cookie", "ingress_bad_cookie", func(tcp *layers.TCP) { tcp.Options[2].OptionData[7-bit/8] ^= 1 << (bit % 8) })
				}
				forge("another server", "ingress_dropped_before", func(tcp *layers.TCP) { tcp.Options[2].OptionData[4] ^= 1 })
			} else {
				forge("a good cookie, without timestamps", "ingress_no_timestamp", func(*layers.TCP) {})
			}
			c.sequence, c.received, c.echo = sequence, received, echo
			c.send(5, "more")
			read(t, conn, "more")
		}
	}
	if n := r.count("ingress_made_way"); n != 0 {
		t.Errorf("way was made %d times", n)
	}
}

// net.ipv4.tcp_rfc1337: TIME_WAIT ignores RSTs.
//
// Promise: Where an RST does not end TIME_WAIT (`tcp_rfc1337`), the server tries at most 50 times a second for
// each connection, and the client waits for its end.
func TestWhatAnRSTDoesNotEndIsDroppedOnce(t *testing.T) {
	r := newSessionRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_rfc1337": "1"}})
	for _, vip := range r.vips {
		c, dropped := r.byHand(vip), r.count("ingress_dropped_before")
		listener := r.listener(vip, sharing())
		c.wait(listener)
		made := r.count("ingress_made_way")
		c.begin()
		c.send(0, "newer")
		r.await("the second time", func() bool { return r.count("ingress_dropped_before") > dropped })
		if made, dropped := r.count("ingress_made_way")-made, r.count("ingress_dropped_before")-dropped; made != 1 || dropped != 1 {
			t.Errorf("way was made %d times, and %d were dropped", made, dropped)
		}
	}
}
