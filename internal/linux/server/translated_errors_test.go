package server_test

import (
	"net"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A router has no room for what goes to clients, and the server none for what goes to its container: both say so by ICMP.
func TestErrorsOfThePathReachWhereTheServerHasTakenTheConnection(t *testing.T) {
	const narrow = 1300 // IPv6 has 1280 at least
	r := newRig(t, rigOptions{lossy: true})
	container := progtest.NewSpace(t, "k")
	progtest.Check(t, container.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	progtest.Connect(t, r.server, "eth5", 1, container, "eth0", 2, 7, 0)
	progtest.Check(t, r.server.Sysctl("net/ipv4/ip_forward", "1"))
	progtest.Check(t, r.server.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	for i, client := range progtest.Prefixes("10.9.0.0/24", "fd09::/64") {
		progtest.Check(t, container.Route(client, 0, hop([]string{"10.7.0.1", "fd07::1"}[i])))
		progtest.Check(t, r.router.Route(client, narrow, netspace.NextHop{Interface: "eth0"}))
	}
	for _, one := range progtest.Prefixes("10.7.0.0/24", "fd07::/64") {
		progtest.Check(t, r.server.Route(one, narrow, netspace.NextHop{Interface: "eth5"}))
	}
	r.translate(prerouting("ip", "ip daddr 198.51.100.10 tcp dport 80 dnat to 10.7.0.2:8080") +
		prerouting("ip6", "ip6 daddr 2001:db8:51::10 tcp dport 80 dnat to [fd07::2]:8080"))
	r.listenAt(container, ":8080")
	before, w := r.rejects(), r.watch()
	for _, vip := range r.vips {
		conn := r.dial(vip)
		defer conn.Close()
		progtest.Check(t, fetch(conn, 100_000))
		progtest.Check(t, upload(conn, 100_000))
		progtest.Check(t, fetch(conn, 100_000))
	}
	for name, space := range map[string]*netspace.Space{"client": r.client, "container": container} {
		if progtest.Netstat(t, []*netspace.Space{space}, "InDestUnreachs")["InDestUnreachs"] == 0 {
			t.Errorf("no error reached the %s", name)
		}
	}
	r.verify(w, before)
}

// upload sends requests for nothing.
func upload(conn net.Conn, bytes int) error {
	_, err := conn.Write(make([]byte, bytes/8*8))
	return err
}
