// Package tunnels keeps whose tunnels an agent takes.
package tunnels

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/agent/desired"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/sources"
)

// Implementation constants of problems about strangers' tunnels.
const (
	foreignLife   = 10 * time.Minute // the last one is a problem for so long
	foreignPeriod = 10 * time.Second // it is not called by another name more often: a flood has a new one for every packet
)

// Tunnels are those of load balancers, and of others.
type Tunnels struct {
	path   *server.Server
	log    *slog.Logger
	byFile bool

	inFile  []netip.Addr    // whose the file names
	sources sources.Sources // by controllers
	from    []netip.Addr    // whose the data path takes
	limit   server.TunnelLimit
	set     bool // the data path knows both

	untouched bool // an earlier process's go on, as all that it left

	notes   server.TunnelNotes // as they were counted last
	seen    time.Time          // when there was another one, zero: never
	named   netip.Addr         // whose it was
	namedAt time.Time
}

// New returns those of a host by a file or by controllers. settle is sources.Sources.Settle.
func New(byFile bool, settle time.Duration, log *slog.Logger) *Tunnels {
	return &Tunnels{log: log, byFile: byFile, sources: sources.Sources{Settle: settle}}
}

// Restore takes whose an earlier process took, by controllers.
func (t *Tunnels) Restore(kept desired.Tunnels) {
	t.sources.Limited = kept.Limited
	t.sources.Restore(kept.From, time.Now())
}

// From are the addresses of load balancers, as far as they are known.
func (t *Tunnels) From() []netip.Addr { return slices.Clone(t.from) }

// Kept is what Restore takes.
func (t *Tunnels) Kept() desired.Tunnels {
	return desired.Tunnels{From: t.from, Limited: t.sources.Limited}
}

// SetFile takes whose tunnels the file names, and applies it.
func (t *Tunnels) SetFile(from []netip.Addr) error {
	t.inFile, t.untouched = from, false
	return t.apply()
}

// LeaveUntouched has what an earlier process left go on until SetFile is called.
func (t *Tunnels) LeaveUntouched() { t.untouched = true }

// Leave notes that a controller is gone.
func (t *Tunnels) Leave(controller string, now time.Time) { t.sources.Leave(controller, now) }

// Open begins with a data path. What an earlier process has counted is no news.
func (t *Tunnels) Open(path *server.Server) (err error) {
	t.path = path
	t.notes, err = path.TunnelNotes()
	return err
}

// apply has the data path take tunnels as it is known now.
func (t *Tunnels) apply() error {
	if t.untouched {
		return nil
	}
	from, limit := t.inFile, server.TunnelsOfAnybody
	if !t.byFile {
		from = t.sources.Addresses()
	}
	switch {
	case t.byFile && len(from) > 0 || t.sources.Limited:
		limit = server.ForeignDropped
	case !t.byFile && t.sources.Doubt() == "":
		limit = server.ForeignNoted
	}
	if t.set && t.limit == limit && slices.Equal(t.from, from) {
		return nil
	}
	before := t.limit
	t.set = false
	if err := t.path.SetTunnelSources(from, limit); err != nil {
		return err
	}
	if t.from, t.limit, t.set = slices.Clone(from), limit, true; limit != before {
		t.log.Info("tunnel sources", "limited", limit == server.ForeignDropped, "load_balancers", len(from))
	}
	return nil
}

// Update takes a controller's list of load balancers.
func (t *Tunnels) Update(controller string, message *ballastv1.TunnelSources) (changed bool) {
	list := sources.List{Controller: message.Controller, Alive: message.Alive, Silent: message.Silent}
	for _, text := range message.Addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			list.Addresses = append(list.Addresses, address.Unmap())
		}
	}
	t.sources.Update(controller, list, time.Now())
	return t.follow()
}

// follow does as is known of load balancers by now.
func (t *Tunnels) follow() (changed bool) {
	from, limit := t.from, t.limit
	if err := t.apply(); err != nil {
		t.log.Error("tunnel sources not updated", "error", err)
	}
	return t.limit != limit || !slices.Equal(t.from, from)
}

// Age notices strangers, and what time does to the list.
func (t *Tunnels) Age(now time.Time) (changed bool) {
	found, err := t.path.TunnelNotes()
	if err != nil {
		t.log.Warn("foreign tunnels not read", "error", err)
	} else {
		known := found.Known != t.notes.Known
		t.sources.Observe(known, t.notice(found, now), now)
	}
	if t.byFile {
		return false
	}
	t.sources.Step(now)
	return t.follow()
}

// notice reports whether there were strangers since it was called last.
func (t *Tunnels) notice(found server.TunnelNotes, now time.Time) (more bool) {
	more = found.Foreign != t.notes.Foreign
	t.notes = found
	if !more {
		return false
	}
	if t.seen = now; now.Sub(t.namedAt) >= foreignPeriod {
		t.named, t.namedAt = found.Last, now
	}
	return true
}

// Status returns whose are taken.
func (t *Tunnels) Status(now time.Time) api.Tunnels {
	s := api.Tunnels{Limited: t.limit == server.ForeignDropped, From: t.from, Source: "controllers", Foreign: t.notes.Foreign, Last: t.notes.Last}
	if t.byFile {
		s.Source = "file"
	}
	if s.Limited {
		return s
	}
	if t.untouched {
		s.Open = "as an earlier process has left it, limited or not"
		return s
	}
	if s.Open = t.sources.Doubt(); t.byFile {
		s.Open = "name the load balancers in the file, under tunnels_from"
	} else if s.Open == "" {
		s.Open = "those of others are dropped " + t.limitBegins(now)
	}
	return s
}

// limitBegins is when strangers' tunnels will be dropped.
func (t *Tunnels) limitBegins(now time.Time) string {
	earliest, latest := t.sources.Until()
	if !t.sources.Proven() {
		return "once there are some of the load balancers that the controllers know"
	}
	if now.Before(earliest) {
		return fmt.Sprintf("from %s on, if all controllers go on to list the load balancers", earliest.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("when none has come for a while, from %s on at the latest", latest.UTC().Format(time.RFC3339))
}

// Problem names tunnels of strangers lately: a load balancer may be lacking. Empty: there were none.
func (t *Tunnels) Problem(now time.Time) string {
	if t.seen.IsZero() || now.Sub(t.seen) > foreignLife || t.limit == server.TunnelsOfAnybody || slices.Contains(t.from, t.named) {
		return ""
	}
	found, remedy := "are dropped (dropped_foreign_source)", "add it to tunnels_from in the file"
	if t.limit == server.ForeignNoted {
		found = "are of no load balancer that the controllers know, and are dropped " + t.limitBegins(now)
	}
	if !t.byFile {
		remedy = "start it with --controller and the certificate of a load balancer"
	}
	return fmt.Sprintf("tunnels from %s %s: if it is a load balancer of this fleet, %s", t.named, found, remedy)
}
