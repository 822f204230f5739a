package lb

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

var severalVIP = netip.MustParseAddr("198.51.100.40")

// severalOf has three addresses of both families, and ranges of ports beside single ones.
func severalOf(ranges ...model.PortRange) func(*model.Service) {
	return func(s *model.Service) {
		s.MoreVIPs, s.PortRanges = []netip.Addr{plus(vip6, 40), fastVIP(42)}, ranges
	}
}

// restOf has all ports of two addresses, but for those of the service before.
func restOf(s *model.Service) {
	s.MoreVIPs, s.Ports, s.PortRanges = []netip.Addr{severalVIP}, nil, []model.PortRange{model.AllPorts}
}

// reopen takes over the tables as the next process would.
func (w *world) reopen() {
	w.Helper()
	w.lb.vipSlotsOf = map[uint32][]*vipSlot{}
	mustSet(w.lb.adoptVIPs())
	restored, err := plan.Restore(testLimits, w.lb)
	mustSet(err)
	w.tables, shared.tables = restored, restored
	w.update(func(*plan.Want) {})
}

func mustVIPs(w *world) map[plan.VIPKey]uint32 {
	vips, err := w.lb.VIPs()
	mustSet(err)
	return vips
}

// goesTo reports whether the connection that a SYN begins is the service's.
func (w *world) goesTo(name string, f flow) bool {
	w.Helper()
	got, _ := w.check(f.frame(f.tcp(syn, synOptions(), nil)))
	return got.service == name && got.verdict == lbVerdictFORWARDED_NEW
}

func TestEveryAddressOfAServiceLeadsToItsServers(t *testing.T) {
	w := newWorld(t, serviceOf("several", severalVIP, severalOf()), serviceOf("other", vip4, nil))
	for _, vip := range service(&w.want, "several").VIPs() {
		for id := range uint16(3) {
			f := flowTo(vip, 443, int(id)+1)
			if !w.goesTo("several", f) {
				t.Errorf("a connection to %s does not begin", vip)
			}
			w.checkVerdict(f.carrying(w.cookieFor("several", f, id+1, 1)), lbVerdictFORWARDED_BY_COOKIE)
		}
	}
}

// Cookies have keys by address: one that a client got at an address says nothing about its connections to another one.
func TestACookieOfOneAddressIsNoneOfAnother(t *testing.T) {
	w := newWorld(t, serviceOf("several", severalVIP, severalOf()))
	there, here := flowTo(fastVIP(42), 443, 1), flowTo(severalVIP, 443, 1)
	if one, other := w.cookieFor("several", there, 2, 1), w.cookieFor("several", here, 2, 1); one == other {
		t.Error("the cookies of two addresses are the same")
	}
}

// Promise: A connection lives on when its service gets further addresses or loses others, and when they change places.
func TestConnectionsSurviveChangesOfOtherAddresses(t *testing.T) {
	w := newWorld(t, serviceOf("several", severalVIP, nil))
	f := flowTo(severalVIP, 443, 1)
	six := flowTo(plus(vip6, 40), 443, 1)
	carried := func(f flow) {
		t.Helper()
		w.checkVerdict(f.carrying(w.cookieFor("several", f, 2, 1)), lbVerdictFORWARDED_BY_COOKIE)
	}
	change := func(vip netip.Addr, more ...netip.Addr) {
		w.update(func(want *plan.Want) {
			s := service(want, "several")
			s.VIP, s.MoreVIPs = vip, more
		})
	}
	carried(f)
	change(severalVIP, plus(vip6, 40))
	carried(f)
	carried(six)
	change(plus(vip6, 40), severalVIP, fastVIP(42))
	carried(f)
	carried(six)
	w.reopen()
	carried(f)
	carried(six)
	change(plus(vip6, 40))
	carried(six)
	w.checkVerdict(f.carrying(1), lbVerdictPASSED_NO_SERVICE)
	w.reopen()
	carried(six)
	change(severalVIP, plus(vip6, 40))
	carried(f)
	carried(six)
}

func TestRangesOfPortsLeadToTheirService(t *testing.T) {
	w := newWorld(t, serviceOf("several", severalVIP, severalOf(model.PortRange{First: 1000, Last: 2000}, model.PortRange{First: 30000, Last: 32767})),
		serviceOf("rest", plus(vip6, 41), restOf))
	look := func() {
		t.Helper()
		for port, name := range map[uint16]string{80: "several", 999: "rest", 1000: "several", 2000: "several", 2001: "rest", 30000: "several", 32767: "several", 32768: "rest", 65535: "rest", 1: "rest"} {
			if !w.goesTo(name, flowTo(severalVIP, port, int(port)%60)) {
				t.Errorf("port %d does not lead to %s", port, name)
			}
			f := flowTo(severalVIP, port, 1)
			w.checkVerdict(ethernet(0, ipPacket(f.client.Addr(), severalVIP, 17, f.udp(nil))), lbVerdictPASSED_NO_SERVICE)
		}
		six := flowTo(plus(vip6, 40), 1500, 1)
		if !w.goesTo("several", six) {
			t.Error("a range does not hold for an IPv6 address")
		}
		w.checkVerdict(flowTo(plus(vip6, 40), 2001, 1).carrying(1), lbVerdictPASSED_NO_SERVICE)
	}
	look()
	w.reopen()
	look()
	for key := range mustVIPs(w) { // as if others had their slots
		if key.Last == 0 && !key.IsAddress() && key.VIP() == severalVIP {
			w.lb.clearVIPSlot(key.PortKey)
		}
	}
	look()
	w.reopen()
	w.update(func(want *plan.Want) {
		service(want, "several").PortRanges[0] = model.PortRange{First: 1500, Last: 2500}
	})
	for port, name := range map[uint16]string{1499: "rest", 1500: "several", 2500: "several", 2501: "rest", 30000: "several"} {
		if !w.goesTo(name, flowTo(severalVIP, port, 3)) {
			t.Errorf("after the range has moved port %d does not lead to %s", port, name)
		}
	}
	w.update(func(want *plan.Want) { want.Services = want.Services[:1] })
	w.checkVerdict(flowTo(severalVIP, 1499, 1).carrying(1), lbVerdictPASSED_NO_SERVICE)
	w.update(func(want *plan.Want) { service(want, "several").PortRanges = nil })
	w.checkVerdict(flowTo(severalVIP, 30000, 1).carrying(1), lbVerdictPASSED_NO_SERVICE)
}
