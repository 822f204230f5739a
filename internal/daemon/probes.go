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

const probePeriod = 10 * time.Second

type probeTable struct {
	takesPart map[netip.AddrPort]bool
}

func (t *probeTable) cannotTakePart(s *model.Service) map[uint16]bool {
	if s.Return != model.ReturnThrough || !s.Affinity.Cookies() {
		return nil
	}
	out := map[uint16]bool{}
	for _, server := range s.Servers {
		if !t.takesPart[s.Endpoint(&server)] {
			out[server.ID] = true
		}
	}
	return out
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
			offset, one, err := netdev.ServerClock(ctx, p.address)
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
		if s.Return != model.ReturnThrough || !s.Affinity.Cookies() {
			continue
		}
		for _, server := range slices.Concat(s.Servers, lb.node.Lingering(s.Name)) {
			probes = append(probes, clockProbe{s.Name, server.ID, s.Endpoint(&server)})
		}
	}
	return probes
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
