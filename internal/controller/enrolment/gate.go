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
	joinAll               = 50 // a second, of all addresses
	atOnce                = 64 // connections
	atOnceEach            = 2  // of one address
	renewRate  rate.Limit = 1.0 / 60
	renewBurst            = 5
	remembered            = 4096
)

// gate limits how often somebody may ask, and how many at once.
type gate struct {
	each  rate.Limit
	burst int
	all   *rate.Limiter

	mutex sync.Mutex
	of    map[string]*rate.Limiter
	open  map[string]int // who is at it
	total int
}

func newGate(each rate.Limit, burst int) *gate {
	return &gate{each: each, burst: burst, all: rate.NewLimiter(joinAll, joinAll), of: map[string]*rate.Limiter{}, open: map[string]int{}}
}

// enter reports whether somebody may ask now; leave has to be called then.
func (g *gate) enter(who string) (ok bool) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.total >= atOnce || g.open[who] >= atOnceEach {
		return false
	}
	limiter := g.of[who]
	if limiter == nil {
		if len(g.of) >= remembered {
			clear(g.of)
		}
		limiter = rate.NewLimiter(g.each, g.burst)
		g.of[who] = limiter
	}
	if !limiter.Allow() || !g.all.Allow() {
		return false
	}
	g.open[who]++
	g.total++
	return true
}

func (g *gate) leave(who string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.total--
	if g.open[who]--; g.open[who] == 0 {
		delete(g.open, who)
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

// neighbourhood is whom the limits of an address are of: a host with IPv6 has as many addresses as it likes.
func neighbourhood(source netip.Addr) string {
	if source.Is6() {
		if prefix, err := source.Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return source.String()
}
