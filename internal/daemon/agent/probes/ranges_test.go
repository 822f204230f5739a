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
