package enrolment

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// Implementation constants: anybody who reaches the port can ask to join.
const (
	joinRate   rate.Limit = 1 // a second, of one address
	joinBurst             = 10
	joinWide              = 10 // a second, of one network
	joinAll               = 50 // a second, of all addresses
	atOnce                = 64 // connections
	atOnceWide            = 16 // of one network
	atOnceEach            = 2  // of one address
	renewRate  rate.Limit = 1.0 / 60
	renewBurst            = 5
	remembered            = 4096
)

// limit is of whoever shares something: how often they may ask, and how many at once.
type limit struct {
	rate   rate.Limit
	burst  int
	atOnce int
}

// gate limits how often somebody may ask, and how many at once: each by all that it is known by.
type gate struct {
	limits []limit // by the order in which enter is told whose they are
	all    *rate.Limiter

	mutex sync.Mutex
	of    []map[string]*rate.Limiter // by limits
	open  map[string]int             // who is at it
	total int
}

func newGate(limits ...limit) *gate {
	g := &gate{limits: limits, all: rate.NewLimiter(joinAll, joinAll), of: make([]map[string]*rate.Limiter, len(limits)), open: map[string]int{}}
	for i := range g.of {
		g.of[i] = map[string]*rate.Limiter{}
	}
	return g
}

// enter reports whether somebody may ask now; leave has to be called then. Whom one limit refuses uses up no other that comes after it: a
// host that asks too often takes nothing from its network, and that nothing from the others.
func (g *gate) enter(who ...string) (ok bool) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.total >= atOnce {
		return false
	}
	for i, name := range who {
		if g.open[name] >= g.limits[i].atOnce {
			return false
		}
	}
	for i, name := range who {
		limiter := g.of[i][name]
		if limiter == nil {
			if len(g.of[i]) >= remembered {
				clear(g.of[i])
			}
			limiter = rate.NewLimiter(g.limits[i].rate, g.limits[i].burst)
			g.of[i][name] = limiter
		}
		if !limiter.Allow() {
			return false
		}
	}
	if !g.all.Allow() {
		return false
	}
	for _, name := range who {
		g.open[name]++
	}
	g.total++
	return true
}

func (g *gate) leave(who ...string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.total--
	for _, name := range who {
		if g.open[name]--; g.open[name] == 0 {
			delete(g.open, name)
		}
	}
}

// sourceOf is the address that a connection comes from.
func sourceOf(address net.Addr) netip.Addr {
	source, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Addr{}
	}
	return source.Addr().Unmap().WithZone("")
}

// neighbourhood is whom the limits of an address are of: the host, which has as many addresses of IPv6 as it likes, and its network, which
// one owner may have all of.
func neighbourhood(source netip.Addr) []string {
	host, network := source.BitLen(), 24
	if source.Is6() {
		host, network = 64, 48
	}
	who := make([]string, 0, 2)
	for _, bits := range []int{host, network} {
		prefix, err := source.Prefix(bits)
		if err != nil {
			return []string{source.String(), source.String()} // no address at all
		}
		who = append(who, prefix.String())
	}
	return who
}
