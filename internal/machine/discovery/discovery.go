// Package discovery decides what becomes of the servers of a service that a source names: DNS, say.
//
// It goes by what the source says now, whatever was said before, so that an answer that was lost, came late or came twice does no harm. A source that does
// not answer, or names nobody, takes no server away.
package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// Leaving is how long a server that is named no more drains before it is removed: one that an answer has left out by mistake comes back as it was.
	Leaving = time.Minute
	// Settling is how long a controller that has begun to lead a service keeps servers that its source has not named since: those of a list, or of the leader
	// before, who may have heard something else. So controllers that take turns add servers, and drain none.
	Settling = time.Minute
	// MaxServers is how many servers an answer may name.
	MaxServers = 4096
	// Within is how long a source may at most take from one answer to the next.
	Within = time.Minute
	// staleAfter is the age of the last good answer from which on it is old, whatever the source says of itself.
	staleAfter = 3 * Within
	// behindAfter is for how long a service may have other servers than its source names.
	behindAfter = Settling + 30*time.Second
)

// Found is a server that a source names.
type Found struct {
	Name     string // empty: its address
	Address  netip.Addr
	Port     uint16 // 0: that of the service
	Weight   uint16 // 0: no new connections; at most model.MaxWeight
	Draining bool   // the source wants no new connections there
}

// Answer is what a source says, of everything that it knows.
type Answer struct {
	Servers []Found
	Notes   []string // what was left out, and why
	Err     error    // there is no answer; Servers is nil
}

// Tracker is what is known of the source of one service. The zero value: it has said nothing.
type Tracker struct {
	servers []Found   // of the last good answer, by address and port
	good    time.Time // when it came
	notes   []string
	failed  error // the last answer was none, or no good one

	version int // grows with each change of what the source says
	unfit   []string
	named   map[netip.AddrPort]time.Time // when servers were wanted last because an answer named them
	unnamed map[netip.AddrPort]time.Time // servers of the service that the last good answer does not name, since when
	settles time.Time                    // until then some of these stay as they are; zero: none
	behind  time.Time                    // since when the service has other servers than it should; zero: it has not
	refused error                        // why they could not be set
}

// errNobody is that of an answer without a server that takes new connections.
var errNobody = errors.New("it names no server that takes new connections")

// Take takes what a source says at that time. The error says why that is no answer to go by.
func (t *Tracker) Take(a Answer, now time.Time) error {
	failed := a.Err
	switch {
	case failed != nil:
	case len(a.Servers) > MaxServers:
		failed = fmt.Errorf("it names %d servers, at most %d are taken", len(a.Servers), MaxServers)
	case !slices.ContainsFunc(a.Servers, func(f Found) bool { return !f.Draining && f.Weight > 0 }):
		failed = errNobody
	}
	if (failed == nil) != (t.failed == nil) || t.good.IsZero() {
		t.version++
	}
	t.failed = failed
	if failed != nil {
		return failed
	}
	servers := merged(a.Servers)
	if !slices.Equal(servers, t.servers) {
		t.version++
	}
	t.servers, t.notes, t.good = servers, a.Notes, now
	return nil
}

// Version is another one whenever the source says something else than before.
func (t *Tracker) Version() int { return t.version }

// merged puts servers in the order of their addresses and ports, each once: with the sum of its weights, and draining if all say so.
func merged(servers []Found) (list []Found) {
	for _, f := range servers {
		at, known := slices.BinarySearchFunc(list, f, func(a, b Found) int { return place(a).Compare(place(b)) })
		if !known {
			list = slices.Insert(list, at, f)
			continue
		}
		list[at].Weight = uint16(min(uint32(list[at].Weight)+uint32(f.Weight), model.MaxWeight))
		list[at].Draining = list[at].Draining && f.Draining
	}
	return list
}

func place(f Found) netip.AddrPort { return netip.AddrPortFrom(f.Address, f.Port) }

// Wanted returns the servers that a service should have at that time, without ids; ok is false: those that it has. next is when time alone changes that; zero:
// never. s is the service as its source said last, without what operators have set; led is since when this controller leads it, zero: it does not.
func (t *Tracker) Wanted(s *model.Service, led, now time.Time) (servers []model.Server, next time.Time, ok bool) {
	if t.good.IsZero() || t.failed != nil {
		return nil, time.Time{}, false
	}
	found := t.servers
	if s.Forward != model.ForwardNAT { // which alone can change the port
		found = slices.Clone(found)
		for i := range found {
			found[i].Port = 0
		}
		found = merged(found)
	}
	before := t.named
	t.named, t.settles = make(map[netip.AddrPort]time.Time, len(found)), time.Time{}
	for _, f := range found {
		t.named[place(f)] = now
		server := model.Server{Name: name(f), Address: f.Address, Port: f.Port, Weight: f.Weight}
		if f.Draining {
			server.State = model.StateDraining
		}
		servers = append(servers, server)
	}
	until := func(end time.Time) {
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	leaving := map[netip.AddrPort]time.Time{}
	for _, server := range s.Servers {
		at := netip.AddrPortFrom(server.Address, server.Port)
		last, known := t.named[at]
		if known && last.Equal(now) {
			continue
		}
		last, known = before[at]
		if settled := led.Add(Settling); (!known || last.Before(led)) && now.Before(settled) {
			servers, t.settles = append(servers, server), settled
			until(settled)
			continue
		}
		if known {
			t.named[at] = last
		}
		since := t.unnamed[at]
		if since.IsZero() {
			since = now
		}
		leaving[at] = since
		if end := since.Add(Leaving); now.Before(end) {
			server.State, server.Deadline = model.StateDraining, time.Time{}
			servers = append(servers, server)
			until(end)
		}
	}
	t.unnamed = leaving
	return servers, next, true
}

// name is the same as long as the server is.
func name(f Found) string {
	if f.Name != "" {
		return f.Name
	}
	if f.Port == 0 {
		return f.Address.String()
	}
	return fmt.Sprintf("%s-%d", f.Address, f.Port)
}

// Observe takes note of whether a service has the servers that it should have, which of these it cannot have, and why the others could not be set. Another
// controller may be the one who sets them.
func (t *Tracker) Observe(same bool, unfit []string, refused error, now time.Time) {
	t.unfit, t.refused = unfit, refused
	switch {
	case same:
		t.behind = time.Time{}
	case t.behind.IsZero():
		t.behind = now
	}
}

// Status is how a service stands to its source.
type Status struct {
	Servers int       // that the last good answer names
	Good    time.Time // when that came; zero: none has
	Problem string    // why servers are not what the source says now; empty: they are
}

// Status tells how a service stands to its source at that time. leader is who carries out what that says.
func (t *Tracker) Status(now time.Time, leader string) Status {
	status := Status{Servers: len(t.servers), Good: t.good}
	kept := "its servers stay as they are"
	switch age := now.Sub(t.good).Round(time.Second); {
	case t.good.IsZero() && t.failed == nil:
		status.Problem = "it has not answered yet"
	case t.good.IsZero():
		status.Problem = fmt.Sprintf("%v; it has never answered: %s", t.failed, kept)
	case t.failed != nil:
		status.Problem = fmt.Sprintf("%v; the last good answer is %v old: %s", t.failed, age, kept)
	case age > staleAfter:
		status.Problem = fmt.Sprintf("the last answer is %v old: %s", age, kept)
	case t.refused != nil:
		status.Problem = fmt.Sprintf("what it says is not carried out: %v", t.refused)
	case !t.behind.IsZero() && now.Sub(t.behind) > behindAfter:
		status.Problem = fmt.Sprintf("what it says is not carried out by controller %s, which may hear something else", cmp.Or(leader, "of the service: nobody leads it"))
	case now.Before(t.settles):
		status.Problem = fmt.Sprintf("servers that it has not named since this controller leads the service stay for %v more", t.settles.Sub(now).Round(time.Second))
	case len(t.notes)+len(t.unfit) > 0:
		status.Problem = "left out: " + model.Some(slices.Concat(t.notes, t.unfit))
	}
	return status
}
