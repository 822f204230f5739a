// Package paths finds the ways to servers: next hops of the kernel, and what routers say of their MTU.
package paths

import (
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Table remembers how to reach each address. A path that was known is kept while the kernel cannot tell a new one: the old
// next hop is the better guess.
type Table struct {
	Known map[netip.Addr]plan.Path
	Why   map[netip.Addr]string // there is no path, or it is not confirmed
	Own   map[netip.Addr]bool   // addresses of this host
	// Here is why packets to this host's own addresses cannot be delivered, empty: they can. nil: they never can.
	Here func() string

	small map[netip.Addr]narrowPath

	next   netdev.Kept // next hops
	doubts map[netip.Addr]doubt
	counts [outcomes]atomic.Uint64 // of what Narrow was told
}

// narrowPath is what a router on the way said; it is forgotten after a while, as the way may have changed (RFC 8201 4).
type narrowPath struct {
	mtu   uint16
	until time.Time
}

const narrowPathLife = 10 * time.Minute

// Outcome is what became of an error about the way to a server.
type Outcome int

const (
	Foreign Outcome = iota // about nothing that this node sends, or it says nothing new
	Forged                 // it does not prove that its sender has seen a packet of ours
	Doubted                // not looked at, as there were many forged ones about this way
	Believed
	outcomes
)

var outcomeNames = [outcomes]string{"foreign", "forged", "doubted", "believed"}

func (o Outcome) String() string { return outcomeNames[o] }

// doubt counts forged errors about a way in the period that ends at until. Who tries all 65,536 proofs needs days for each success.
type doubt struct {
	forged int
	until  time.Time
}

const (
	doubtPeriod = time.Minute
	maxForged   = 16 // in a period
)

// Confirmed: the kernel knows a way to some address now.
func (t *Table) Confirmed() bool {
	for address := range t.Known {
		if t.Why[address] == "" {
			return true
		}
	}
	return false
}

// Narrow lowers the MTU of a path that is known, if the error proves that it is about a packet that carried secret.
func (t *Table) Narrow(found netdev.TooBig, secret uint32, now time.Time) Outcome {
	outcome := t.judge(found, secret, now)
	t.counts[outcome].Add(1)
	return outcome
}

// Outcomes counts the errors by what became of them. It is safe for concurrent use.
func (t *Table) Outcomes() map[string]uint64 {
	counts := make(map[string]uint64, outcomes)
	for outcome, name := range outcomeNames {
		counts[name] = t.counts[outcome].Load()
	}
	return counts
}

func (t *Table) judge(found netdev.TooBig, secret uint32, now time.Time) Outcome {
	path, known := t.Known[found.Destination]
	if !known || found.Source != path.Source {
		return Foreign
	}
	doubted := t.doubts[found.Destination]
	if now.After(doubted.until) {
		doubted = doubt{until: now.Add(doubtPeriod)}
	}
	if doubted.forged >= maxForged {
		return Doubted
	}
	if !found.Proves(secret) {
		doubted.forged++
		if t.doubts == nil {
			t.doubts = map[netip.Addr]doubt{}
		}
		t.doubts[found.Destination] = doubted
		return Forged
	}
	if found.MTU >= path.MTU {
		return Foreign
	}
	if t.small == nil {
		t.small = map[netip.Addr]narrowPath{}
	}
	t.small[found.Destination] = narrowPath{found.MTU, now.Add(narrowPathLife)}
	return Believed
}

// Expired reports whether a path may be as wide as its route again.
func (t *Table) Expired(now time.Time) bool {
	for _, small := range t.small {
		if now.After(small.until) {
			return true
		}
	}
	return false
}

// mtu is that of the route, or what a router said is less.
func (t *Table) mtu(address netip.Addr, route uint16) uint16 {
	if small, ok := t.small[address]; ok && time.Now().Before(small.until) {
		return min(route, small.mtu)
	}
	return route
}

// Probe has the kernel confirm the next hops towards servers that do not answer. What it finds comes as a change of the network.
func (t *Table) Probe(silent []netip.Addr) error {
	return t.next.Probe(silent)
}

// Refresh looks the ways to addresses up, and forgets all others. It goes by routes, and adds those that it has to ask for.
func (t *Table) Refresh(addresses []netip.Addr, routes *netdev.Routes, log *slog.Logger) {
	before, why := t.Known, t.Why
	t.Known, t.Why, t.Own = make(map[netip.Addr]plan.Path, len(addresses)), map[netip.Addr]string{}, map[netip.Addr]bool{}
	if err := routes.Ask(addresses); err != nil {
		log.Warn("routes are unknown", "error", err)
	}
	resolver := t.next.Resolver(routes)
	for _, address := range addresses {
		path, err := t.lookUp(resolver, address)
		if err == nil {
			t.Known[address] = path
			if why[address] != "" {
				log.Info("a path is known", "address", address)
			}
			continue
		}
		old, known := before[address]
		if known = known && !old.Here; known {
			t.Known[address] = old
		}
		if known && why[address] == "" && mayAnswer(err) {
			continue // as when somebody has flushed the neighbours: packets are sent where they were
		}
		t.Why[address] = err.Error()
		if why[address] == "" {
			log.Warn("no path yet", "address", address, "error", err)
		}
	}
	if err := t.next.Release(); err != nil {
		log.Warn("neighbours that are no next hops any more are kept resolved", "error", err)
	}
	maps.DeleteFunc(t.small, func(address netip.Addr, small narrowPath) bool {
		_, known := t.Known[address]
		return !known || time.Now().After(small.until)
	})
	maps.DeleteFunc(t.doubts, func(address netip.Addr, _ doubt) bool { _, known := t.Known[address]; return !known })
}

// HereHasChanged reports whether packets to this host's own addresses could be delivered at the last Refresh, and cannot now, or the other way
// round.
func (t *Table) HereHasChanged() bool {
	for address := range t.Own {
		return t.Known[address].Here != (t.Here() == "")
	}
	return false
}

// lookUp asks the kernel for the way to an address.
func (t *Table) lookUp(resolver *netdev.Resolver, address netip.Addr) (plan.Path, error) {
	hop, err := resolver.Lookup(address)
	if errors.Is(err, netdev.ErrOwn) && t.Here != nil {
		t.Own[address] = true
		if why := t.Here(); why != "" {
			return plan.Path{}, errors.New(why)
		}
		return plan.Path{Here: true, Source: address, MTU: math.MaxUint16}, nil
	}
	if err != nil {
		return plan.Path{}, err
	}
	return plan.Path{
		Ifindex: uint32(hop.Ifindex), VLAN: hop.VLAN, Source: hop.Source,
		SourceMAC: hop.SourceMAC, DestinationMAC: hop.Destination, MTU: t.mtu(address, hop.MTU), OnLink: hop.OnLink,
	}, nil
}

// mayAnswer says that the neighbour is being asked: within 3 s it has answered, or failed.
func mayAnswer(err error) bool {
	var unresolved *netdev.Unresolved
	return errors.As(err, &unresolved) && !unresolved.Failed
}

// resolveTimeout bounds how long a change waits for new servers' neighbours to answer; they are on the same link.
const resolveTimeout = 200 * time.Millisecond

// AwaitNeighbours waits for the kernel to resolve the neighbours that lead to addresses, so that a change does not begin with
// packets for servers that cannot be reached yet. It goes by routes, and adds those that it has to ask for.
func AwaitNeighbours(addresses []netip.Addr, routes *netdev.Routes) {
	if routes.Ask(addresses) != nil {
		return // Refresh says it
	}
	for deadline := time.Now().Add(resolveTimeout); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		resolver := netdev.NewResolverBy(routes)
		addresses = slices.DeleteFunc(addresses, func(address netip.Addr) bool {
			_, err := resolver.Lookup(address)
			return !errors.Is(err, netdev.ErrUnresolved)
		})
		if len(addresses) == 0 {
			return
		}
	}
}
