// Package clocks finds out whether a server of a return: through service has one clock for all connections
// (net.ipv4.tcp_timestamps=2). Until that is known its connections go without timestamps, by the fallback: a wrong guess would break
// them, a late one costs nothing.
package clocks

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	probePeriod  = 10 * time.Second
	probesAtOnce = 16
)

// Clocks are what is known of servers' clocks. All methods are safe for concurrent use.
type Clocks struct {
	Log *slog.Logger

	mutex sync.Mutex
	one   map[netip.AddrPort]bool // servers that have one clock, or (false) one for each connection
}

// Known is what probes found, to be saved: without it every restart would take timestamps off until it has probed again.
func (c *Clocks) Known() map[netip.AddrPort]bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return maps.Clone(c.one)
}

// Load goes on with what probes of an earlier process found.
func (c *Clocks) Load(known map[netip.AddrPort]bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.one = maps.Clone(known)
}

func (c *Clocks) hasOne(server netip.AddrPort) (one, known bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	one, known = c.one[server]
	return one, known
}

// NoCookie are the servers of a service that have clocks of their own for each connection, or whose clock is not known yet.
func (c *Clocks) NoCookie(now *dataplane.Snapshot, s *model.Service) map[uint16]bool {
	if !concerns(s) {
		return nil
	}
	out := map[uint16]bool{}
	for i := range s.Servers {
		server := &s.Servers[i]
		one, _ := c.hasOne(s.Endpoint(server))
		if known, _ := c.clock(now, s.Name, server.ID); !known || !one {
			out[server.ID] = true
		}
	}
	return out
}

func concerns(s *model.Service) bool { return s.Return == model.ReturnThrough && s.Affinity.Cookies() }

// clock is what the data path knows of a server's clock.
func (c *Clocks) clock(now *dataplane.Snapshot, service string, id uint16) (known, doubted bool) {
	known, doubted, err := now.Clock(service, id)
	if err != nil {
		c.Log.Error("clock of server not read", "id", id, "error", err)
	}
	return known, doubted
}

// Probe asks every server of such services from time to time, and at once when its packets cast doubt on what is known, until ctx ends.
// It calls changed when the tables have to follow.
func (c *Clocks) Probe(ctx context.Context, tables *dataplane.Tables, changed func()) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	asked := map[probe]time.Time{}
	for {
		var asking sync.WaitGroup
		places := make(chan struct{}, probesAtOnce)
		for _, p := range c.due(tables.Now(), asked) {
			asked[p] = time.Now()
			places <- struct{}{}
			asking.Go(func() {
				offset, one, err := netdev.ServerClock(ctx, p.address)
				if c.probed(tables, p, offset, one, err) {
					changed()
				}
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

type probe struct {
	service string
	id      uint16
	address netip.AddrPort
}

// due are the servers that have not been asked for long, and those whose clock is doubted.
func (c *Clocks) due(now *dataplane.Snapshot, asked map[probe]time.Time) (probes []probe) {
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if !concerns(s) {
			continue
		}
		for _, server := range slices.Concat(s.Servers, now.Lingering(s.Name)) {
			p := probe{s.Name, server.ID, s.Endpoint(&server)}
			one, _ := c.hasOne(p.address)
			if _, doubted := c.clock(now, s.Name, server.ID); doubted && one || time.Since(asked[p]) >= probePeriod {
				probes = append(probes, p)
			}
		}
	}
	return probes
}

// probed takes what an answer shows. It reports whether that was not known, or not in the tables.
func (c *Clocks) probed(tables *dataplane.Tables, p probe, offset uint32, one bool, err error) (changed bool) {
	if err != nil && !errors.Is(err, netdev.ErrNoTimestamp) {
		c.Log.Debug("clock of server not learned", "service", p.service, "server", p.address, "error", err)
		return false // what was known stays known
	}
	inTables, _ := c.clock(tables.Now(), p.service, p.id)
	if one {
		if err := tables.SetClock(p.service, p.id, offset); err != nil {
			c.Log.Error("clock of server not stored", "server", p.address, "error", err)
		}
	}
	before, known := c.hasOne(p.address)
	c.mutex.Lock()
	if c.one == nil {
		c.one = map[netip.AddrPort]bool{}
	}
	c.one[p.address] = one
	c.mutex.Unlock()
	switch {
	case known && before == one && (inTables || !one):
		return false
	case known && before == one: // logged before
	case one:
		c.Log.Info("server has one clock: its connections carry cookies", "service", p.service, "server", p.address)
	default:
		c.Log.Warn("server has a clock for each connection: served by the fallback, without timestamps; "+
			"set net.ipv4.tcp_timestamps=2 on it", "service", p.service, "server", p.address)
	}
	return true
}
