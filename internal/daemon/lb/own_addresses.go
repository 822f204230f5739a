// Addresses of this host that no service may take: where this daemon listens, and where its tunnels come from.
package lb

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

// resolveListeners looks up the names in addresses to listen at, once: what this node does must not wait for name servers, or fail with them.
func resolveListeners(o *Options) error {
	for _, own := range []struct {
		flag    string
		address *string
	}{{"--listen", &o.Listen}, {"--metrics", &o.Metrics}, {"--console", &o.Console}} {
		if *own.address == "" {
			continue
		}
		at, err := net.ResolveTCPAddr("tcp", *own.address)
		if err != nil {
			return fmt.Errorf("find the address of %s: %w", own.flag, err)
		}
		*own.address = at.String()
	}
	return nil
}

// checkOwnListeners refuses services that would take what others say to this daemon. A VIP may be an address of this host: what is for no
// port of a service goes on to the host.
func checkOwnListeners(o *Options, fleet *model.Fleet) error {
	for _, own := range []struct{ flag, address string }{{"--listen", o.Listen}, {"--metrics", o.Metrics}, {"--console", o.Console}} {
		if own.address == "" {
			continue
		}
		at, err := net.ResolveTCPAddr("tcp", own.address)
		if err != nil {
			return fmt.Errorf("find the address of %s: %w", own.flag, err)
		}
		for i := range fleet.Services {
			s := &fleet.Services[i]
			if s.Protocol != model.ProtocolTCP || !s.HasPort(uint16(at.Port)) {
				continue
			}
			taken := s.HasVIP(at.AddrPort().Addr().Unmap())
			if at.IP == nil || at.IP.IsUnspecified() {
				devices, err := netdev.InterfacesOf(s.VIPs())
				taken = err == nil && len(devices) > 0
			}
			if taken {
				return &model.Invalid{Path: fmt.Sprintf("services[%d].vip", i), Remedy: "give the service another vip or port, or the daemon another " + own.flag,
					Problem: fmt.Sprintf("%s port %d is where this load balancer listens by %s: the service would take what is for it", s.Where(), at.Port, own.flag)}
			}
		}
	}
	return nil
}

// mostSources is how many addresses are reported. A host may have more, VIPs for example; controllers take a few times as many of one load
// balancer within a day.
const mostSources = 256

// sources are the addresses that tunnels may come from, at most mostSources: those of paths that were resolved before, then those there are now.
func (p *parts) sources() (texts []string) {
	local, err := netdev.LocalAddresses()
	if err != nil {
		p.log.Warn("agents do not learn all addresses of this host", "error", err)
	}
	return sourceTexts(p.tables.Sources(), local)
}

// sourceTexts writes used addresses, then local ones, each once.
func sourceTexts(used, local []netip.Addr) (texts []string) {
	slices.SortFunc(used, netip.Addr.Compare)
	slices.SortFunc(local, netip.Addr.Compare)
	written := map[netip.Addr]bool{}
	for _, address := range slices.Concat(used, local) {
		if address.IsGlobalUnicast() && !written[address] && len(texts) < mostSources {
			written[address], texts = true, append(texts, address.String())
		}
	}
	return texts
}

// takenFromHost are services of controllers that take what is for this host. Controllers refuse them where they know its addresses; one state
// cannot be refused for one of its services.
func takenFromHost(o *Options, now *dataplane.Snapshot) (problems []string) {
	if err := checkOwnListeners(o, &now.Running); err != nil {
		problems = append(problems, err.Error())
	}
	sources := now.Sources()
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		for _, vip := range s.VIPs() {
			if slices.Contains(sources, vip) {
				problems = append(problems, fmt.Sprintf("service %s: its VIP %s is this load balancer's own address, which tunnels come from: give the service another", s.Name, vip))
			}
		}
	}
	return problems
}
