// Whose tunnels an agent takes.
package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/sources"
)

// Implementation constants of what is said about strangers' tunnels.
const (
	strangerLife   = 10 * time.Minute // the last one is a problem for so long
	strangerPeriod = 10 * time.Second // it is not called by another name more often: a flood has a new one for every packet
)

// tunnels are those of load balancers, and of others.
type tunnels struct {
	from  []netip.Addr // whose the data path takes
	limit server.TunnelLimit
	set   bool // the data path knows both

	notes   server.TunnelNotes // as they were counted last
	seen    time.Time          // when there was another one, zero: never
	named   netip.Addr         // whose it was
	namedAt time.Time
}

// limitTunnels has the data path take tunnels as it is known now. Callers hold mu.
func (a *agent) limitTunnels() error {
	from, limit := a.applied.Fleet.TunnelsFrom, server.TunnelsOfAnybody
	if a.options.Config == "" {
		from = a.sources.Addresses()
	}
	switch {
	case a.options.Config != "" && len(from) > 0 || a.sources.Limited:
		limit = server.StrangersDropped
	case a.options.Config == "" && a.sources.Doubt() == "":
		limit = server.StrangersNoted
	}
	t := &a.tunnels
	if t.set && t.limit == limit && slices.Equal(t.from, from) {
		return nil
	}
	before := t.limit
	t.set = false
	if err := a.path.SetTunnelSources(from, limit); err != nil {
		return err
	}
	if t.from, t.limit, t.set = slices.Clone(from), limit, true; limit != before {
		a.log.Info("whose tunnels are taken", "limited", limit == server.StrangersDropped, "load_balancers", len(from))
	}
	return nil
}

// onSources takes a controller's list of load balancers.
func (a *agent) onSources(controller string, message *ballastv1.TunnelSources) {
	list := sources.List{Controller: message.Controller, Alive: message.Alive, Silent: message.Silent}
	for _, text := range message.Addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			list.Addresses = append(list.Addresses, address.Unmap())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.options.Config == "" {
		a.sources.Tell(controller, list, time.Now())
		a.followSources()
	}
}

// followSources does as is known of load balancers by now, and keeps it. Callers hold mu.
func (a *agent) followSources() {
	before := a.tunnels
	if err := a.limitTunnels(); err != nil {
		a.log.Error("whose tunnels are taken cannot be changed", "error", err)
	}
	same := a.tunnels.limit == before.limit && slices.Equal(a.tunnels.from, before.from)
	if !same && a.stateKnown { // else there is no state to keep it with
		a.keepState()
	}
}

// ageTunnels notices strangers, and what time does to the list.
func (a *agent) ageTunnels(now time.Time) {
	found, err := a.path.TunnelNotes()
	if err != nil {
		a.log.Warn("strangers' tunnels not looked at", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		known := found.Known != a.tunnels.notes.Known
		a.sources.Came(known, a.tunnels.notice(found, now), now)
	}
	if a.options.Config == "" {
		a.sources.Step(now)
		a.followSources()
	}
}

// notice reports whether there were strangers since it was called last.
func (t *tunnels) notice(found server.TunnelNotes, now time.Time) (more bool) {
	more = found.Strangers != t.notes.Strangers
	t.notes = found
	if !more {
		return false
	}
	if t.seen = now; now.Sub(t.namedAt) >= strangerPeriod {
		t.named, t.namedAt = found.Last, now
	}
	return true
}

// tunnelStatus tells whose are taken. Callers hold mu.
func (a *agent) tunnelStatus(now time.Time) api.Tunnels {
	t := &a.tunnels
	s := api.Tunnels{Limited: t.limit == server.StrangersDropped, From: t.from, Source: "controllers", Strangers: t.notes.Strangers, Last: t.notes.Last}
	if a.options.Config != "" {
		s.Source = "file"
	}
	if s.Limited {
		return s
	}
	if s.Open = a.sources.Doubt(); a.options.Config != "" {
		s.Open = "name the load balancers in the file, under tunnels_from"
	} else if s.Open == "" {
		s.Open = "those of others are dropped " + a.limitBegins(now)
	}
	return s
}

// limitBegins tells when strangers' tunnels will be dropped. Callers hold mu.
func (a *agent) limitBegins(now time.Time) string {
	earliest, latest := a.sources.Until()
	if !a.sources.Proven() {
		return "once there are some of the load balancers that the controllers know"
	}
	if now.Before(earliest) {
		return fmt.Sprintf("from %s on, if all controllers go on to tell of the load balancers", earliest.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("when none has come for a while, from %s on at the latest", latest.UTC().Format(time.RFC3339))
}

// strangerProblem tells of tunnels of strangers lately: a load balancer may be lacking. Empty: there were none. Callers hold mu.
func (a *agent) strangerProblem(now time.Time) string {
	t := &a.tunnels
	if t.seen.IsZero() || now.Sub(t.seen) > strangerLife || t.limit == server.TunnelsOfAnybody || slices.Contains(t.from, t.named) {
		return ""
	}
	found, remedy := "are dropped (dropped_foreign_source)", "add it to tunnels_from in the file"
	if t.limit == server.StrangersNoted {
		found = "are of no load balancer that the controllers know, and are dropped " + a.limitBegins(now)
	}
	if a.options.Config == "" {
		remedy = "start it with --controller and the certificate of a load balancer"
	}
	return fmt.Sprintf("tunnels from %s %s: if it is a load balancer of this fleet, %s", t.named, found, remedy)
}
