// Whose tunnels an agent takes.
package agent

import (
	"fmt"
	"log/slog"
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

// open begins with a data path. What an earlier process has counted is no news.
func (t *tunnels) open(path *server.Server) (err error) {
	t.path = path
	t.notes, err = path.TunnelNotes()
	return err
}

// apply has the data path take tunnels as it is known now.
func (t *tunnels) apply() error {
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

// onSources takes a controller's list of load balancers.
func (t *tunnels) onSources(controller string, message *ballastv1.TunnelSources) (changed bool) {
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
func (t *tunnels) follow() (changed bool) {
	from, limit := t.from, t.limit
	if err := t.apply(); err != nil {
		t.log.Error("tunnel sources not updated", "error", err)
	}
	return t.limit != limit || !slices.Equal(t.from, from)
}

// age notices strangers, and what time does to the list.
func (t *tunnels) age(now time.Time) (changed bool) {
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
func (t *tunnels) notice(found server.TunnelNotes, now time.Time) (more bool) {
	more = found.Foreign != t.notes.Foreign
	t.notes = found
	if !more {
		return false
	}
	if t.seen = now; now.Sub(t.namedAt) >= strangerPeriod {
		t.named, t.namedAt = found.Last, now
	}
	return true
}

// status tells whose are taken.
func (t *tunnels) status(now time.Time) api.Tunnels {
	s := api.Tunnels{Limited: t.limit == server.ForeignDropped, From: t.from, Source: "controllers", Strangers: t.notes.Foreign, Last: t.notes.Last}
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

// limitBegins tells when strangers' tunnels will be dropped.
func (t *tunnels) limitBegins(now time.Time) string {
	earliest, latest := t.sources.Until()
	if !t.sources.Proven() {
		return "once there are some of the load balancers that the controllers know"
	}
	if now.Before(earliest) {
		return fmt.Sprintf("from %s on, if all controllers go on to list the load balancers", earliest.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("when none has come for a while, from %s on at the latest", latest.UTC().Format(time.RFC3339))
}

// problem tells of tunnels of strangers lately: a load balancer may be lacking. Empty: there were none.
func (t *tunnels) problem(now time.Time) string {
	if t.seen.IsZero() || now.Sub(t.seen) > strangerLife || t.limit == server.TunnelsOfAnybody || slices.Contains(t.from, t.named) {
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
