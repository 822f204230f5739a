// Whose tunnels an agent takes.
package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

// Implementation constants of what is said about strangers' tunnels.
const (
	strangerLife   = 10 * time.Minute // the last one is a problem for so long
	strangerPeriod = 10 * time.Second // it is not called by another name more often: a flood has a new one for every packet
)

// tunnels are those of load balancers, and of others.
type tunnels struct {
	from  []netip.Addr // whose the data path takes
	limit datapath.TunnelLimit
	set   bool // the data path knows both

	strangers datapath.Strangers // as they were counted last
	dropped   time.Time          // when one was dropped last, zero: never
	named     netip.Addr         // whose it was
	namedAt   time.Time
}

// limitTunnels has the data path take tunnels as it is known now. Callers hold mu.
func (a *Agent) limitTunnels() error {
	from, limit := a.applied.Fleet.TunnelsFrom, datapath.TunnelsOfAnybody
	if len(from) > 0 {
		limit = datapath.StrangersDropped
	}
	t := &a.tunnels
	if t.set && t.limit == limit && slices.Equal(t.from, from) {
		return nil
	}
	t.set = false
	if err := a.path.SetTunnelSources(from, limit); err != nil {
		return err
	}
	t.from, t.limit, t.set = slices.Clone(from), limit, true
	return nil
}

// lookAtStrangers notices tunnels that were dropped.
func (a *Agent) lookAtStrangers(now time.Time) {
	found, err := a.path.Strangers()
	if err != nil {
		a.log.Warn("strangers' tunnels not looked at", "error", err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tunnels.notice(found, now)
}

func (t *tunnels) notice(found datapath.Strangers, now time.Time) {
	more := found.Packets != t.strangers.Packets
	t.strangers = found
	if !more || t.limit != datapath.StrangersDropped {
		return
	}
	if t.dropped = now; now.Sub(t.namedAt) >= strangerPeriod {
		t.named, t.namedAt = found.Last, now
	}
}

func (t *tunnels) status(byFile bool) api.Tunnels {
	s := api.Tunnels{Limited: t.limit == datapath.StrangersDropped, From: t.from, Source: "controllers", Strangers: t.strangers.Packets, Last: t.strangers.Last}
	if byFile {
		s.Source = "file"
	}
	if !s.Limited {
		s.Open = "name the load balancers in the file, under tunnels_from"
	}
	return s
}

// problem tells of tunnels that were dropped lately: a load balancer may be lacking. Empty: there were none.
func (t *tunnels) problem(byFile bool, now time.Time) string {
	if t.dropped.IsZero() || now.Sub(t.dropped) > strangerLife || t.limit != datapath.StrangersDropped || slices.Contains(t.from, t.named) {
		return ""
	}
	return fmt.Sprintf("tunnels from %s are dropped (dropped_foreign_source): if it is a load balancer of this fleet, add it to tunnels_from in the file", t.named)
}
