package server_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/untracked"
)

// natRules are what hosts with other software have: none is about the service.
var natRules = map[string]string{
	"masquerade of containers": "table inet t {\nchain c {\ntype nat hook postrouting priority srcnat\nip saddr 172.17.0.0/16 masquerade\nip6 saddr fd17::/64 masquerade\n}\n}\n",
	"masquerade of all":        "table inet t {\nchain c {\ntype nat hook postrouting priority srcnat\nmasquerade\n}\n}\n",
	"redirect of a port":       "table inet t {\nchain c {\ntype nat hook prerouting priority dstnat\ntcp dport 7777 redirect to :7000\n}\n}\n",
	"DNAT of a port": "table inet t {\nchain c {\ntype nat hook prerouting priority dstnat\ntcp dport 7777 dnat ip to 172.17.0.2:80\n" +
		"tcp dport 7777 dnat ip6 to [fd17::2]:80\n}\n}\n",
	"an empty chain and a stateful filter": "table inet t {\nchain c {\ntype nat hook input priority 100\n}\n" +
		"chain f {\ntype filter hook input priority filter\nct state established counter\n}\n}\n",
	"a filter that wants no invalid packets": "table inet t {\nchain c {\ntype nat hook input priority 100\n}\n" +
		"chain f {\ntype filter hook input priority filter\npolicy drop\nct state invalid drop\nct state established accept\ntcp dport 80 accept\nmeta l4proto ipv6-icmp accept\n}\n}\n",
}

func sessionsAt(r *rig) (at []netip.AddrPort) {
	for _, vip := range r.vips {
		at = append(at, netip.AddrPortFrom(vip, servicePort))
	}
	return at
}

// Promise: Connections of `session: tls` are taken over on servers whose kernel translates other connections,
// because the agent keeps them out of connection tracking.
func TestHellosAreTakenOverOnHostsThatTranslateOtherConnections(t *testing.T) {
	for name, rules := range natRules {
		t.Run(name, func(t *testing.T) {
			r := newSessionRig(t, rigOptions{})
			r.translate(rules)
			progtest.Check(t, r.server.Do(func() error { return untracked.Table{Name: "ballast_test"}.Set(sessionsAt(r)) }))
			for _, vip := range r.vips {
				listener := r.listener(vip, sharing())
				for range 3 {
					c := r.byHand(vip)
					c.send(0, "hello, server")
					conn := c.accept(listener, "hello, server")
					c.talk(conn, uint32(len("hello, server")))
				}
			}
		})
	}
}

// When this fails the kernel is mended: the table is needed on older ones alone.
func TestHellosAreResetWhereTheKernelTracksThem(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	r.translate(natRules["masquerade of containers"])
	for _, vip := range r.vips {
		r.listener(vip, sharing())
		resets, before := 0, r.count("egress_reset_taken_over")
		for range 10 { // one right after the rules were loaded has been seen to get through
			c := r.byHand(vip)
			c.send(0, "hello, server")
			if c.expect("an answer", func(tcp *layers.TCP) bool { return tcp.RST || tcp.ACK }).RST {
				resets++
			}
		}
		if resets < 5 {
			t.Errorf("%s: %d of 10 hellos are reset", vip, resets)
		}
		if counted := r.count("egress_reset_taken_over") - before; counted != uint64(resets) {
			t.Errorf("%s: %d of %d resets are counted", vip, counted, resets)
		}
	}
}

func TestTheTableOfUntrackedServicesIsReplacedRemovedAndMissed(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	table, at := untracked.Table{Name: "ballast_test"}, sessionsAt(r)
	progtest.Check(t, r.server.Do(func() error {
		holds := func(when string, want bool, at []netip.AddrPort) {
			t.Helper()
			got, err := table.Holds(at)
			progtest.Check(t, err)
			if got != want {
				t.Errorf("%s: it holds %v: %t", when, at, got)
			}
		}
		holds("at first", false, at)
		progtest.Check(t, table.Remove())
		progtest.Check(t, table.Set(at[:1]))
		holds("after one", false, at)
		holds("after one", true, at[:1])
		progtest.Check(t, table.Set(at))
		holds("after both", true, at)
		holds("after both", false, at[1:])
		elsewhere := append(slices.Clone(at[:1]), netip.AddrPortFrom(at[1].Addr(), servicePort+1))
		holds("another port", false, elsewhere)
		progtest.Check(t, table.Set(nil))
		holds("without services", true, nil)
		holds("without services", false, at)
		return nil
	}))
	r.translate("table inet others {\nchain c {\n}\n}\n")
	progtest.Check(t, r.server.Do(func() error { return table.Set(at) }))
	r.translate("flush ruleset\n")
	progtest.Check(t, r.server.Do(func() error {
		if holds, err := table.Holds(at); holds || err != nil {
			t.Errorf("it holds after all rules were flushed: %t, %v", holds, err)
		}
		return nil
	}))
}

func TestResetsOfOthersAreNotThoseOfTheKernel(t *testing.T) {
	r := newSessionRig(t, rigOptions{})
	for _, vip := range r.vips {
		none := r.byHand(vip) // nobody listens
		none.send(0, "hello")
		none.expect("a reset", func(tcp *layers.TCP) bool { return tcp.RST })
		listener := r.listener(vip, sharing())
		c := r.byHand(vip)
		c.send(0, "hello, server")
		conn := c.accept(listener, "hello, server")
		progtest.Check(t, conn.(*net.TCPConn).SetLinger(0)) // the application resets
		progtest.Check(t, conn.Close())
		c.expect("a reset", func(tcp *layers.TCP) bool { return tcp.RST })
		if n := r.count("egress_reset_taken_over"); n != 0 {
			t.Errorf("%s: %d: %v", vip, n, r.counts())
		}
	}
}
