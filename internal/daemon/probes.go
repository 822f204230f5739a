package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

// Whether a server of a return: through service has one clock for all connections (net.ipv4.tcp_timestamps=2). Until that is known
// its connections go without timestamps, by the fallback: a wrong guess would break them, a late one costs nothing.

const (
	probePeriod      = 10 * time.Second
	probeTimeout     = time.Second
	probeConnections = 4
	probeSpreadMS    = 50 // how far offsets of one clock may lie apart: scheduling
)

type probeTable struct {
	takesPart map[netip.AddrPort]bool
}

func (t *probeTable) cannotTakePart(s *model.Service) map[uint16]bool {
	if s.Return != model.ReturnThrough || s.Affinity != model.AffinityCookie {
		return nil
	}
	out := map[uint16]bool{}
	for _, server := range s.Servers {
		if !t.takesPart[probeAddress(s, &server)] {
			out[server.ID] = true
		}
	}
	return out
}

func probeAddress(s *model.Service, server *model.Server) netip.AddrPort {
	port := server.Port
	if port == 0 {
		port = s.Ports[0]
	}
	return netip.AddrPortFrom(server.Address, port)
}

// probeClocks asks every server of such services from time to time, until ctx ends.
func (lb *LB) probeClocks(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	asked := map[clockProbe]time.Time{}
	for {
		for _, p := range lb.serversToProbe() {
			if time.Since(asked[p]) < probePeriod {
				continue
			}
			asked[p] = time.Now()
			offset, one, err := probeClock(ctx, p.address)
			lb.probed(p, offset, one, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type clockProbe struct {
	service string
	id      uint16
	address netip.AddrPort
}

func (lb *LB) serversToProbe() (probes []clockProbe) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	for _, s := range lb.node.Running.Services {
		if s.Return != model.ReturnThrough || s.Affinity != model.AffinityCookie {
			continue
		}
		for _, server := range slices.Concat(s.Servers, lb.node.Lingering(s.Name)) {
			probes = append(probes, clockProbe{s.Name, server.ID, probeAddress(&s, &server)})
		}
	}
	return probes
}

// probeClock reports the clock's offset and whether all connections have the same.
func probeClock(ctx context.Context, server netip.AddrPort) (offset uint32, one bool, err error) {
	for i := range probeConnections {
		attempt, cancel := context.WithTimeout(ctx, probeTimeout)
		next, err := netdev.TimestampOffset(attempt, server)
		cancel()
		if err != nil {
			return 0, false, err
		}
		if i > 0 && int32(next-offset) > probeSpreadMS || i > 0 && int32(offset-next) > probeSpreadMS {
			return 0, false, nil
		}
		offset = next
	}
	return offset, true, nil
}

func (lb *LB) probed(p clockProbe, offset uint32, one bool, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err != nil && !errors.Is(err, netdev.ErrNoTimestamp) {
		lb.log.Debug("clock of server not learned", "service", p.service, "server", p.address, "error", err)
		return // what was known stays known
	}
	if one {
		if index, ok := lb.tables.Places()[p.service].Counters[p.id]; ok {
			if err := lb.path.SetClock(index, offset); err != nil {
				lb.log.Error("clock of server not stored", "server", p.address, "error", err)
			}
		}
	}
	if lb.probes.takesPart == nil {
		lb.probes.takesPart = map[netip.AddrPort]bool{}
	}
	before, known := lb.probes.takesPart[p.address]
	if known && before == one {
		return
	}
	lb.probes.takesPart[p.address] = one
	if one {
		lb.log.Info("server has one clock: its connections carry cookies", "service", p.service, "server", p.address)
	} else {
		lb.log.Warn("server has a clock for each connection: served by the fallback, without timestamps; "+
			"set net.ipv4.tcp_timestamps=2 on it", "service", p.service, "server", p.address)
	}
	if err := lb.carryOut(lb.node); err != nil {
		lb.log.Error("tables not updated", "error", err)
	}
}
