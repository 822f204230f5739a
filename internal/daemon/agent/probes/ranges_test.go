package probes

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
)

// withRange is a host with a service of a range of ports, all of which are taken.
func withRange(r model.PortRange) (h *host, s *model.Service, ports []uint16) {
	h, s = newHost(), service()
	s.PortRanges = []model.PortRange{r}
	for number := uint32(max(r.First, 1)); number <= uint32(r.Last); number++ {
		ports = append(ports, uint16(number))
		h.fates[uint16(number)] = server.ProbeAnswered
	}
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	return h, s, ports
}

// Promise: Of a range of ports at a VIP that a host does not have, every port gets SYNs of the agent in turn: one whose packets are lost is a problem with
// its name until they are taken again, and where three in a row are lost the agent is not ready.
func TestAllPortsOfARangeHaveTheirTurn(t *testing.T) {
	for _, r := range []model.PortRange{{First: 8000, Last: 8099}, {First: 80, Last: 81}, {First: 65530, Last: 65535}, {First: 0, Last: 12}} {
		h, s, ports := withRange(r)
		round := 4*len(ports) + 10
		h.look(round)
		h.says(t, "all are taken", s, "", "", "")
		asked := map[uint16]bool{}
		for _, probe := range h.sent {
			asked[probe.Service.Port()] = true
		}
		if len(asked) != len(ports) || !asked[ports[0]] || !asked[r.Last] {
			t.Fatalf("%v: %d of %d ports were asked: %v", r, len(asked), len(ports), asked)
		}
		lost := ports[len(ports)/2]
		h.fates[lost] = server.ProbeReturned
		h.look(round)
		hole := fmt.Sprintf("SYNs to its tcp port %d, of %d to %d, are lost here, while others are taken: this host sends them back", lost, ports[0], r.Last)
		h.says(t, "one is lost", s, "", "", hole)
		if status := h.Status(h.now); len(status) != 1 || status[0].At.Port() == lost || status[0].State != api.ProbeTaken {
			t.Errorf("%v: %+v", r, status)
		}
		h.fates[lost] = server.ProbeAnswered
		h.look(20)
		h.says(t, "it is taken again", s, "", "", "")
		for _, number := range ports {
			h.fates[number] = server.ProbeReturned
		}
		h.look(20)
		h.says(t, "all are lost", s, "are lost here: this host sends them back", "are lost here: this host sends them back", "")
		for _, number := range ports {
			h.fates[number] = server.ProbeAnswered
		}
		h.look(20)
		h.says(t, "all are taken again", s, "", "", "")
	}
}

func TestARangeOfOnePortIsAPort(t *testing.T) {
	h, s, _ := withRange(model.PortRange{First: 443, Last: 443})
	h.fates[443] = server.ProbeReturned
	h.look(10)
	h.says(t, "it is lost", s, "tcp port 443 are lost here", "tcp port 443 are lost here", "")
}

// Ports of a range that another service names are that service's.
func TestPortsThatOthersNameHaveNoTurn(t *testing.T) {
	h, s, ports := withRange(model.PortRange{First: 8000, Last: 8009})
	other := service(8003)
	other.Name = "other"
	h.Set(of(s, other), []netip.Addr{vip}, "chain c")
	h.fates[8003] = server.ProbeReturned
	h.look(6 * len(ports))
	h.says(t, "the range", s, "", "tcp port 8003 are lost here", "")
	h.says(t, "the other", other, "tcp port 8003 are lost here", "tcp port 8003 are lost here", "")
}

// A host where an application listens at few ports of a range is as ready as it was, and not every other minute.
func TestARangeThatIsTakenInPartStaysSo(t *testing.T) {
	for _, part := range []int{2, 3, 5, 10} {
		h, s, ports := withRange(model.PortRange{First: 30000, Last: 30999})
		for _, number := range ports[len(ports)/part:] {
			h.fates[number] = server.ProbeReturned
		}
		h.look(400) // until the first is taken
		for range 4 * len(ports) {
			h.look(1)
			if obstacles, _ := h.Obstacles(h.now); len(obstacles) > 0 {
				t.Fatalf("a part of 1/%d is taken, and %v is an obstacle", part, obstacles)
			}
		}
		for _, number := range ports {
			h.fates[number] = server.ProbeReturned
		}
		h.look(8 * (inARow*part + 2))
		h.says(t, "all are lost", s, "are lost here: this host sends them back", "are lost here: this host sends them back", "")
	}
}

// Promise: Of a range of UDP ports, one of which nothing is seen is a problem with its name and keeps none of the others from their turn; where nothing is seen of three in a row
// that is said of the range, and the agent stays ready.
func TestUnseenPortsOfARange(t *testing.T) {
	for _, r := range []model.PortRange{{First: 8000, Last: 8019}, {First: 80, Last: 81}, {First: 443, Last: 443}} {
		h, s, ports := withRange(r)
		s.Protocol = model.ProtocolUDP
		clear(h.fates)
		h.to, h.through = netip.MustParseAddrPort("10.244.1.7:5353"), map[uint16]bool{}
		for _, number := range ports {
			h.through[number] = true
		}
		h.Set(of(s), []netip.Addr{vip}, "chain c")
		ready := func(when string) {
			t.Helper()
			for range 60 * (len(ports) + 5) {
				h.look(1)
				if obstacles, _ := h.Obstacles(h.now); len(obstacles) > 0 {
					t.Fatalf("%v, %s: %v", r, when, obstacles)
				}
			}
		}
		h.look(10)
		ready("all are seen")
		h.says(t, "all are seen", s, "", "", "")
		unseen := ports[len(ports)/2]
		if delete(h.through, unseen); len(ports) > 1 {
			h.sent = nil
			ready("one is not seen")
			h.says(t, "one is not seen", s, "", "", fmt.Sprintf("udp port %d, of %d to %d, are not seen to be taken here, while others are: nothing answers", unseen, ports[0], r.Last))
			asked := map[uint16]bool{}
			for _, probe := range h.sent {
				asked[probe.Service.Port()] = true
			}
			if len(asked) != len(ports) {
				t.Errorf("%v: %d of %d ports were asked", r, len(asked), len(ports))
			}
		}
		clear(h.through)
		h.sent = nil
		ready("none is seen")
		h.says(t, "none is seen", s, "", "", "are taken here is not known: nothing answers datagrams")
		if perMinute := len(h.sent) * 60 / (60 * (len(ports) + 5)); perMinute > 60/int(calm.Seconds())*2 {
			t.Errorf("%v: %d datagrams a minute", r, perMinute)
		}
		for _, number := range ports {
			h.through[number] = true
		}
		ready("all are seen again")
		h.says(t, "all are seen again", s, "", "", "")
	}
}

// As those to a port, datagrams to a range are seen by an application, which may have many of its ports.
func TestDatagramsToARangeAreFew(t *testing.T) {
	h, s, _ := withRange(model.PortRange{First: 8000, Last: 8099})
	s.Protocol = model.ProtocolUDP
	h.Set(of(s), []netip.Addr{vip}, "chain c")
	h.look(120)
	if len(h.sent) < 6 || len(h.sent) > 8 {
		t.Errorf("%d datagrams in two minutes", len(h.sent))
	}
}
