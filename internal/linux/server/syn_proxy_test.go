package server_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/gopacket/gopacket/layers"
)

// newProxiedRig is a rig whose services have syn_proxy.
func newProxiedRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	o.plain = true
	r := newRig(t, o)
	answerSYNs(r)
	r.attach("")
	return r
}

func answerSYNs(r *rig) {
	for i := range r.fleet.Services {
		r.fleet.Services[i].SYNProxy = model.SYNProxyAlways
	}
}

const greeting = "220 mail.example.com\r\n"

// greets has a server speak first, and the client answer.
func (c *byHand) greets(listener net.Listener) net.Conn {
	c.t.Helper()
	conn := c.accept(listener, "")
	progtest.Check(c.t, write(conn, greeting))
	got := c.expect("greeting", func(tcp *layers.TCP) bool { return string(tcp.Payload) == greeting })
	if got.Seq != c.number+1 || got.Ack != c.sequence+1 {
		c.t.Errorf("the greeting's sequence number %#x acknowledges %#x, not %#x and %#x", got.Seq, got.Ack, c.number+1, c.sequence+1)
	}
	c.received = got.Seq + uint32(len(greeting))
	c.clock++
	c.send(0, "EHLO")
	read(c.t, conn, "EHLO")
	return conn
}

// Promise: With `syn_proxy` servers that speak first work: the client's acknowledgement begins the connection.
func TestAnEmptyAcknowledgementBeginsAConnection(t *testing.T) {
	r := newProxiedRig(t, rigOptions{})
	before, bad := r.rejects(), r.count("ingress_bad_cookie")
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		c.expectCount("the acknowledgement", 1, c.taken(), func() { c.send(0, "") })
		c.greets(listener)
		c.port++ // it comes twice, and data at once
		c.begin()
		c.expectCount("the acknowledgement", 1, c.taken(), func() { c.send(0, ""); c.send(0, ""); c.send(0, "data") })
		conn := c.accept(listener, "data")
		c.talk(conn, 4)
		c.port++ // it is lost
		c.begin()
		c.expectCount("data", 1, c.taken(), func() { c.send(0, "data") })
		c.talk(c.accept(listener, "data"), 4)
		c.port++ // what nobody has answered
		c.begin()
		c.expectCount("a probe", 1, "ingress_dropped_before", func() { c.send(^uint32(0), "") })
		c.expectCount("another number", 1, "ingress_dropped_before", func() { c.send(0, "", func(tcp *layers.TCP) { tcp.Ack ^= 1 << 20 }) })
	})
	if after := r.rejects(); after["PAWSEstab"] != before["PAWSEstab"] || after["TSEcrRejected"] != before["TSEcrRejected"] {
		t.Errorf("rejected timestamps: %v before, %v after", before, after)
	}
	if n := r.count("ingress_bad_cookie") - bad; n != 0 {
		t.Errorf("%d bad cookies", n)
	}
}

// The agent is another one by the time that the handshake ends, and once more while the connection lives.
func TestAHandshakeOutlivesTheAgent(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	answerSYNs(r)
	dir := r.pins()
	r.attach(dir)
	again := func() {
		progtest.Check(t, r.agent.Close())
		r.attach(dir)
	}
	eachClient(t, r, sharing(), func(c *byHand, listener net.Listener) {
		again()
		c.send(0, "")
		conn := c.accept(listener, "")
		again()
		progtest.Check(t, write(conn, greeting))
		c.received = c.expect("greeting", func(tcp *layers.TCP) bool { return string(tcp.Payload) == greeting }).Seq + uint32(len(greeting))
		c.clock++
		c.send(0, "EHLO")
		read(t, conn, "EHLO")
	})
}

// What the server still has of the port goes out of the way of an acknowledgement as of data.
func TestAnEmptyAcknowledgementMakesWay(t *testing.T) {
	r := newProxiedRig(t, rigOptions{})
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
				before(c, listener)
				c.begin()
				c.expectCount(name, 1, "ingress_made_way", func() { c.send(0, "") })
				c.greets(listener)
			}
		}
		progtest.Check(t, listener.Close())
	}
}

// Load balancers pass SYNs on while syn_proxy auto is off: servers begin connections as ever, those with SYN cookies of their own too.
//
// Promise: With `syn_proxy: auto` a server's own handshakes, with its own SYN cookies too, end as ever, with timestamps and without.
func TestAServersOwnHandshakesGoOnBesideSYNProxy(t *testing.T) {
	for _, cookies := range []string{"1", "2"} {
		r := newProxiedRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_syncookies": cookies}})
		for _, vip := range r.vips {
			r.greet(vip, nil)
		}
		for _, timestamps := range []string{"1", "0"} {
			progtest.Check(t, r.client.Sysctl("net/ipv4/tcp_timestamps", timestamps))
			dropped := r.count("ingress_dropped_before")
			for _, vip := range r.vips {
				for range 3 {
					progtest.Check(t, r.greeted(vip))
				}
			}
			if n := r.count("ingress_dropped_before") - dropped; n != 0 {
				t.Errorf("tcp_syncookies=%s, tcp_timestamps=%s: %d were dropped", cookies, timestamps, n)
			}
		}
	}
}

// greet serves connections at a VIP: it speaks first, and sends back what it gets.
func (r *rig) greet(vip netip.Addr, accepted func(net.Conn)) {
	listener := r.listener(vip, sharing())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if accepted != nil {
				accepted(conn)
			}
			go func() {
				defer conn.Close()
				if write(conn, greeting) == nil {
					io.Copy(conn, conn)
				}
			}()
		}
	}()
}

// greeted is a client that waits for the greeting before it says anything.
func (r *rig) greeted(vip netip.Addr) error {
	return r.client.Do(func() error {
		dialer := net.Dialer{Timeout: progtest.Deadline, KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		conn, err := dialer.Dial("tcp", netip.AddrPortFrom(vip, servicePort).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(deadline()); err != nil {
			return err
		}
		for _, text := range []string{greeting, "EHLO\r\n"} {
			if text != greeting {
				if _, err := conn.Write([]byte(text)); err != nil {
					return err
				}
			}
			got := make([]byte, len(text))
			if _, err := io.ReadFull(conn, got); err != nil {
				return err
			}
			if string(got) != text {
				return errors.New("received " + string(got))
			}
		}
		return nil
	})
}

// The whole way: clients' kernels, a load balancer, an agent and the server's kernel, in the middle of a flood of forged SYNs.
//
// Promise: With `syn_proxy` 1,000 forged SYNs reach no server, and real clients connect meanwhile, also to servers that speak first.
func TestRealClientsConnectWhileForgedSYNsReachNoServer(t *testing.T) {
	r := newProxiedRig(t, rigOptions{lossy: true})
	lb, tables := r.balance()
	router, err := r.router.MAC("eth0")
	progtest.Check(t, err)
	for _, vip := range r.vips {
		r.greet(vip, nil)
	}
	for i, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		changes, err := tables.Update(r.want(netip.MustParseAddr([]string{"10.8.0.2", "fd08::2", "10.8.0.2"}[i]), forward))
		progtest.Check(t, err)
		progtest.Check(t, lb.Apply(changes))
		for _, vip := range r.vips {
			for _, timestamps := range []string{"1", "0"} {
				progtest.Check(t, r.client.Sysctl("net/ipv4/tcp_timestamps", timestamps))
				opened := r.netstat("SyncookiesSent")["SyncookiesSent"]
				taken := r.count("ingress_taken_over") + r.count("ingress_taken_over_unmarked")
				forged := r.byHand(vip)
				copy(forged.header, router)
				for n := range 1000 {
					forged.port = uint16(1024 + n)
					forged.send(uint32(n), "", func(tcp *layers.TCP) { tcp.SYN, tcp.ACK, tcp.Ack = true, false, 0 })
					if n%250 == 0 {
						progtest.Check(t, r.greeted(vip))
					}
				}
				if n := r.count("ingress_taken_over") + r.count("ingress_taken_over_unmarked") - taken; n != 4 {
					t.Errorf("%s by %s: %d connections were taken over; %v", vip, forward, n, r.counts())
				}
				if n := r.netstat("SyncookiesSent")["SyncookiesSent"] - opened; n != 0 {
					t.Errorf("the server's kernel has sent %d SYN cookies", n)
				}
				if n := r.count("ingress_no_echo"); n != 0 {
					t.Errorf("%s by %s: %d SYNs have reached the server", vip, forward, n)
				}
			}
		}
	}
}
