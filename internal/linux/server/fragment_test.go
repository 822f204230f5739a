package server_test

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// The first fragment has the whole header of TCP, and the checksum of all of the segment.
func TestTimestampsOfFragmentedSegmentsAreRestored(t *testing.T) {
	r := newRig(t, rigOptions{lossy: true})
	r.listen(false)
	progtest.Check(t, r.client.Sysctl("net/ipv4/ip_no_pmtu_disc", "1"))
	progtest.Check(t, r.router.Route(netip.PrefixFrom(r.vips[0], 32), 1000, netspace.NextHop{Gateway: netip.MustParseAddr("10.8.0.2"), Interface: "eth1"}))
	before := r.rejects()
	conn := r.dial(r.vips[0])
	defer conn.Close()
	progtest.Check(t, fetch(conn, 1000))
	restored, bad := r.count("ingress_restored"), r.count("ingress_bad_cookie")
	const segments = 100
	progtest.Check(t, upload(conn, segments*1448))
	progtest.Check(t, fetch(conn, 1000))
	whole := progtest.Netstat(t, []*netspace.Space{r.server}, "ReasmOKs")
	if n := r.count("ingress_restored") - restored; n < segments-10 || r.count("ingress_bad_cookie") != bad || whole["ReasmOKs"] < segments-10 {
		t.Errorf("%d segments restored, %d more not, %v", n, r.count("ingress_bad_cookie")-bad, whole)
	}
	w := r.watch()
	progtest.Check(t, fetch(conn, 1_000_000))
	r.verify(w, before)
}
