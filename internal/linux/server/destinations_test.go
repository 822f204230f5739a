package server_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Load balancer and agent with real TCP: two services become one of both addresses with a range of ports, then one of all ports.
//
// Promise: Connections live on when services of one protocol become one with several addresses, and when single ports become ranges.
func TestServicesBecomeOneOfSeveralAddressesAndRanges(t *testing.T) {
	for _, mode := range []attach.XDPMode{attach.XDPNative, attach.XDPGeneric} {
		t.Run(string(mode), func(t *testing.T) { becomeOne(t, newRig(t, rigOptions{lossy: true, mode: mode})) })
	}
}

func becomeOne(t *testing.T, r *rig) {
	lb, tables := r.balance()
	r.listen(false)
	before := r.rejects()
	server := netip.MustParseAddr("10.8.0.2")
	want := r.want(server, model.ForwardIPIP)
	apply := func() {
		t.Helper()
		r.publish()
		changes, err := tables.Update(want)
		progtest.Check(t, err)
		progtest.Check(t, lb.Apply(changes))
	}
	apply()
	var living []net.Conn
	begin := func() {
		t.Helper()
		for _, vip := range r.vips {
			living = append(living, r.dial(vip))
		}
		for i, conn := range living {
			taken, restored := r.count("decapsulated"), r.count("ingress_restored")
			if err := fetch(conn, 100_000); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
			// A request, and acknowledgements, which may come after the answer has been read.
			await.True(t, fmt.Sprintf("connection %d is marked, and comes by the load balancer", i), func() bool {
				return r.count("decapsulated")-taken >= 2 && r.count("ingress_restored")-restored >= 2
			})
		}
	}
	begin()
	one := want.Services[0]
	one.Name, one.MoreVIPs = "one", r.vips[1:]
	served := r.fleet.Services[0]
	served.Name, served.MoreVIPs = "one", r.vips[1:]
	for _, ranges := range []model.PortRange{{First: servicePort - 7, Last: servicePort + 7}, {First: servicePort, Last: servicePort + 1}, model.AllPorts} {
		one.Ports, one.PortRanges = nil, []model.PortRange{ranges}
		served.Ports, served.PortRanges = nil, one.PortRanges
		want.Services, r.fleet.Services = []plan.Service{one}, []model.Service{served}
		apply()
		begin()
	}
	one.Ports, one.PortRanges = []uint16{servicePort}, nil
	served.Ports, served.PortRanges = one.Ports, nil
	want.Services, r.fleet.Services = []plan.Service{one}, []model.Service{served}
	apply()
	begin()
	if after := r.rejects(); !maps.Equal(before, after) {
		t.Errorf("TCP rejected segments: %v, then %v", before, after)
	}
	if n := r.count("ingress_bad_cookie"); n != 0 {
		t.Errorf("%d cookies are bad", n)
	}
	for _, conn := range living {
		conn.Close()
	}
}
