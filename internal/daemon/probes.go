package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Whether a server of a return: through service has one clock for all connections (net.ipv4.tcp_timestamps=2). Until that is known
// its connections go without timestamps, by the fallback: a wrong guess would break them, a late one costs nothing.

const (
	probePeriod  = 10 * time.Second
	probesAtOnce = 16
)

type probeTable struct {
	takesPart map[netip.AddrPort]bool
}

// cannotTakePart are the servers of a service that have clocks of their own for each connection, or whose clock is not known yet. Callers hold mu.
func (lb *LB) cannotTakePart(s *model.Service) map[uint16]bool {
	if s.Return != model.ReturnThrough || !s.Affinity.Cookies() {
		return nil
	}
	out, place := map[uint16]bool{}, lb.tables.Places()[s.Name]
	for _, server := range s.Servers {
		if known, _ := lb.clock(place, server.ID); !known || !lb.probes.takesPart[s.Endpoint(&server)] {
			out[server.ID] = true
		}
	}
	return out
}

// probeClocks asks every server of such services from time to time, and at once when its packets cast doubt on what is known, until ctx ends.
func (lb *LB) probeClocks(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	asked := map[clockProbe]time.Time{}
	for {
		var asking sync.WaitGroup
		places := make(chan struct{}, probesAtOnce)
		for _, p := range lb.serversToProbe(asked) {
			asked[p] = time.Now()
			places <- struct{}{}
			asking.Go(func() {
				offset, one, err := netdev.ServerClock(ctx, p.address)
				lb.probed(p, offset, one, err)
				<-places
			})
		}
		asking.Wait()
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

// serversToProbe are those that have not been asked for long, and those whose clock is doubted.
func (lb *LB) serversToProbe(asked map[clockProbe]time.Time) (probes []clockProbe) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	places := lb.tables.Places()
	for _, s := range lb.node.Running.Services {
		if s.Return != model.ReturnThrough || !s.Affinity.Cookies() {
			continue
		}
		for _, server := range slices.Concat(s.Servers, lb.node.Lingering(s.Name)) {
			p := clockProbe{s.Name, server.ID, s.Endpoint(&server)}
			if _, doubted := lb.clock(places[s.Name], server.ID); doubted && lb.probes.takesPart[p.address] || time.Since(asked[p]) >= probePeriod {
				probes = append(probes, p)
			}
		}
	}
	return probes
}

// clock is what the data path knows of a server's clock. Callers hold mu.
func (lb *LB) clock(place plan.Place, id uint16) (known, doubted bool) {
	index, ok := place.Counters[id]
	if !ok {
		return false, false
	}
	known, doubted, err := lb.path.Clock(index)
	if err != nil {
		lb.log.Error("clock of server not read", "id", id, "error", err)
	}
	return known, doubted
}

func (lb *LB) probed(p clockProbe, offset uint32, one bool, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err != nil && !errors.Is(err, netdev.ErrNoTimestamp) {
		lb.log.Debug("clock of server not learned", "service", p.service, "server", p.address, "error", err)
		return // what was known stays known
	}
	clockKnown, _ := lb.clock(lb.tables.Places()[p.service], p.id)
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
	lb.probes.takesPart[p.address] = one
	switch {
	case known && before == one && (clockKnown || !one):
		return
	case known && before == one: // told of once
	case one:
		lb.log.Info("server has one clock: its connections carry cookies", "service", p.service, "server", p.address)
	default:
		lb.log.Warn("server has a clock for each connection: served by the fallback, without timestamps; "+
			"set net.ipv4.tcp_timestamps=2 on it", "service", p.service, "server", p.address)
	}
	if err := lb.carryOut(lb.node); err != nil {
		lb.log.Error("tables not updated", "error", err)
	}
}
