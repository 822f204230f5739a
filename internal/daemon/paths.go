package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// pathTable remembers how to reach each address. A path that was known is kept while the kernel cannot tell a new one: the old
// next hop is the better guess.
type pathTable struct {
	known map[netip.Addr]plan.Path
	why   map[netip.Addr]string // there is no path, or it is not confirmed
	small map[netip.Addr]narrowPath

	doubts map[netip.Addr]doubt
	errors [pathErrors]uint64 // counters
}

// narrowPath is what a router on the way said; it is forgotten after a while, as the way may have changed (RFC 8201 4).
type narrowPath struct {
	mtu   uint16
	until time.Time
}

const narrowPathLife = 10 * time.Minute

// pathError is what became of an error about the way to a server.
type pathError int

const (
	pathErrorForeign pathError = iota // about nothing that this node sends, or it says nothing new
	pathErrorForged                   // it does not prove that its sender has seen a packet of ours
	pathErrorDoubted                  // not looked at, as there were many forged ones about this way
	pathErrorBelieved
	pathErrors
)

var pathErrorNames = [pathErrors]string{"foreign", "forged", "doubted", "believed"}

// doubt counts forged errors about a way in the period that ends at until. Who tries all 65,536 proofs needs days for each success.
type doubt struct {
	forged int
	until  time.Time
}

const (
	doubtPeriod = time.Minute
	maxForged   = 16 // in a period
)

// confirmed: the kernel knows a way to some address now.
func (t *pathTable) confirmed() bool {
	for address := range t.known {
		if t.why[address] == "" {
			return true
		}
	}
	return false
}

// narrow lowers the MTU of a path that is known, if the error proves that it is about a packet that carried secret.
func (t *pathTable) narrow(found netdev.TooBig, secret uint32, now time.Time) pathError {
	path, known := t.known[found.Destination]
	if !known || found.Source != path.Source {
		return pathErrorForeign
	}
	doubted := t.doubts[found.Destination]
	if now.After(doubted.until) {
		doubted = doubt{until: now.Add(doubtPeriod)}
	}
	if doubted.forged >= maxForged {
		return pathErrorDoubted
	}
	if !found.Proves(secret) {
		doubted.forged++
		if t.doubts == nil {
			t.doubts = map[netip.Addr]doubt{}
		}
		t.doubts[found.Destination] = doubted
		return pathErrorForged
	}
	if found.MTU >= path.MTU {
		return pathErrorForeign
	}
	if t.small == nil {
		t.small = map[netip.Addr]narrowPath{}
	}
	t.small[found.Destination] = narrowPath{found.MTU, now.Add(narrowPathLife)}
	return pathErrorBelieved
}

// expired reports whether a path may be as wide as its route again.
func (t *pathTable) expired(now time.Time) bool {
	for _, small := range t.small {
		if now.After(small.until) {
			return true
		}
	}
	return false
}

// mtu is that of the route, or what a router said is less.
func (t *pathTable) mtu(address netip.Addr, route uint16) uint16 {
	if small, ok := t.small[address]; ok && time.Now().Before(small.until) {
		return min(route, small.mtu)
	}
	return route
}

func (t *pathTable) refresh(addresses []netip.Addr, log *slog.Logger) {
	before, why := t.known, t.why
	t.known, t.why = map[netip.Addr]plan.Path{}, map[netip.Addr]string{}
	resolver := netdev.NewResolver()
	for _, address := range addresses {
		hop, err := resolver.Lookup(address)
		if err == nil {
			t.known[address] = plan.Path{
				Ifindex: uint32(hop.Ifindex), VLAN: hop.VLAN, Source: hop.Source,
				SourceMAC: hop.SourceMAC, DestinationMAC: hop.Destination, MTU: t.mtu(address, hop.MTU),
			}
			if why[address] != "" {
				log.Info("server can be reached", "address", address)
			}
			continue
		}
		t.why[address] = err.Error()
		if old, ok := before[address]; ok {
			t.known[address] = old
		}
		if why[address] == "" {
			log.Warn("no path to server yet", "address", address, "error", err)
		}
	}
	maps.DeleteFunc(t.small, func(address netip.Addr, small narrowPath) bool {
		_, known := t.known[address]
		return !known || time.Now().After(small.until)
	})
	maps.DeleteFunc(t.doubts, func(address netip.Addr, _ doubt) bool { _, known := t.known[address]; return !known })
}

// resolveTimeout bounds how long a change waits for new servers' neighbours to answer; they are on the same link.
const resolveTimeout = 200 * time.Millisecond

// awaitNeighbours waits for the kernel to resolve the neighbours that lead to addresses, so that a change does not begin with
// packets for servers that cannot be reached yet.
func awaitNeighbours(addresses []netip.Addr) {
	for deadline := time.Now().Add(resolveTimeout); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		resolver := netdev.NewResolver()
		addresses = slices.DeleteFunc(addresses, func(address netip.Addr) bool {
			_, err := resolver.Lookup(address)
			return !errors.Is(err, netdev.ErrUnresolved)
		})
		if len(addresses) == 0 {
			return
		}
	}
}

// wantedAddresses are those of all servers and nodes that may get packets from here.
func (lb *LB) wantedAddresses() (addresses []netip.Addr) {
	seen := map[netip.Addr]bool{}
	add := func(servers []model.Server) {
		for _, s := range servers {
			if !seen[s.Address] {
				seen[s.Address] = true
				addresses = append(addresses, s.Address)
			}
		}
	}
	for _, s := range lb.node.Running.Services {
		if !lb.sendsToNodes(&s) {
			add(s.Servers)
			add(lb.node.Lingering(s.Name))
		}
	}
	if second := lb.secondTier(); second != nil {
		add(second.Servers)
	}
	return addresses
}

// interfaces finds devices by name; without names, those of the default routes.
func interfaces(names []string) (devices []*net.Interface, err error) {
	if len(names) == 0 {
		if names, err = netdev.DefaultInterfaces(); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("find interface %s: %w: see `ip link`", name, err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}
