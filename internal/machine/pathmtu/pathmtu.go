// Package pathmtu finds servers whose device takes less than load balancers send there in one packet: it drops what is longer, without ICMP.
package pathmtu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

// OthersMax is of how many servers a load balancer reports a path MTU of its own, beside that of most.
const OthersMax = 256

const clientMTU = 1500 // of nearly every client

// A Server is one server of one service, with what its agent and the load balancers say.
type Server struct {
	Name     string
	Device   string
	MTU      int            // of the device
	Segment  int            // the largest TCP segment that its default routes announce to clients; 0: what the device has room for
	Overhead int            // bytes that load balancers put around a client's packet
	Headers  int            // bytes of a client's packet before the data; 0: it is not TCP
	Paths    map[string]int // MTU of the path to it, by load balancer
}

// need is how many bytes the device has to take of packets by a path of so many.
func (s *Server) need(path int) int {
	longest := clientMTU
	if s.Headers > 0 && s.Segment > 0 {
		longest = min(longest, s.Segment+s.Headers)
	}
	return min(path, longest+s.Overhead)
}

// fault is what servers may have in common.
type fault struct {
	device    string
	mtu, need int
	room      int // for a client's packet, 0 of those by UDP
	segment   int // that fits
	lbs       string
}

// Problems names the servers whose clients lose long packets, those with the same fault at once, and what to set.
func Problems(servers []Server) (problems []string) {
	found := map[fault]map[string]bool{}
	for i := range servers {
		s := &servers[i]
		need, lbs := 0, []string{}
		for _, lb := range slices.Sorted(maps.Keys(s.Paths)) {
			if n := s.need(s.Paths[lb]); n > s.MTU {
				need, lbs = max(need, n), append(lbs, lb)
			}
		}
		if len(lbs) == 0 || s.MTU == 0 {
			continue
		}
		f := fault{device: s.Device, mtu: s.MTU, need: need, room: max(s.MTU-s.Overhead, 0), lbs: model.Some(lbs)}
		if s.Headers > 0 {
			f.segment = max(f.room-s.Headers, 0)
		}
		if found[f] == nil {
			found[f] = map[string]bool{}
		}
		found[f][s.Name] = true
	}
	order := slices.SortedFunc(maps.Keys(found), func(a, b fault) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.mtu, b.mtu), cmp.Compare(a.need, b.need), cmp.Compare(a.segment, b.segment), strings.Compare(a.lbs, b.lbs))
	})
	for _, f := range order {
		problems = append(problems, f.problem(slices.Sorted(maps.Keys(found[f]))))
	}
	return problems
}

func (f *fault) problem(names []string) string {
	remedy := fmt.Sprintf("ip link set %s mtu %d there", f.device, f.need)
	if f.segment > 0 {
		remedy += fmt.Sprintf(", or ip route change default via ROUTER advmss %d", f.segment)
	}
	return fmt.Sprintf("clients of %s (%s) lose packets of more than %d bytes without ICMP: %s there takes %d bytes, and %s sends up to %d with the tunnel: %s",
		model.Counted(len(names), "server", "servers"), model.Some(names), f.room, f.device, f.mtu, f.lbs, f.need, remedy)
}
