package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/algo/rendezvous"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Controllers divide the services by a list in the store, so that all of them go by the same one: each is led by the controller that
// elect names. Whoever sees that those that live are others than the list says replaces it. The revision of the list is the term of
// the weights made by it, so those of whoever went by an older list are told apart, however late they come.

// Implementation constants.
const (
	retryPause     = 200 * time.Millisecond
	proposeTimeout = time.Second // of an attempt to replace the list: meanwhile nothing else is noticed
	// settleTime is how long a new list is left alone: whoever wrote it may know of a controller that we are just about to hear of.
	settleTime = 100 * time.Millisecond
)

// leadership is what a controller may lead.
type leadership struct {
	term  uint64   // 0: nothing
	names []string // of the controllers that services are divided by
}

func (l leadership) equal(other leadership) bool {
	return l.term == other.term && slices.Equal(l.names, other.names)
}

// of reports whether self leads a service.
func (l leadership) of(self, service string) bool {
	return l.term != 0 && l.leaderOf(service) == self
}

// leaderOf returns who leads a service; empty: this controller does not know.
func (l leadership) leaderOf(service string) string {
	if l.term == 0 {
		return ""
	}
	return rendezvous.Elect(service, l.names, 1)[0]
}

// decide returns what self leads: what falls to it by the list, if it is on the list as it is now and lives as far as it knows.
func decide(self string, live []store.Member, current *documents.Snapshot) leadership {
	own := slices.IndexFunc(live, func(m store.Member) bool { return m.Name == self })
	if own < 0 || current == nil || !slices.Contains(current.Controllers.Members, documents.Member{Name: self, Term: live[own].Term}) {
		return leadership{}
	}
	l := leadership{term: current.Revisions[documents.ControllersKey]}
	for _, member := range current.Controllers.Members {
		l.names = append(l.names, member.Name)
	}
	return l
}

// divide keeps up with who lives until ctx ends, and leads what falls to this controller.
func (c *controller) divide(ctx context.Context) {
	defer c.leave()
	live := c.join(ctx)
	var members []store.Member
	var term uint64
	var began time.Time // of the term
	said := ""
	for {
		current, changed := c.mirror.Next()
		if current != nil && current.Revisions[documents.ControllersKey] != term {
			term, began = current.Revisions[documents.ControllersKey], time.Now()
		}
		c.lead(decide(c.name, members, current))
		var again <-chan time.Time
		if agreed(members, current) {
			said = ""
		} else if young := settleTime - time.Since(began); young > 0 {
			again = time.After(young)
		} else if err := c.propose(ctx, c.name, members); err != nil && ctx.Err() == nil {
			again = time.After(retryPause)
			if text := err.Error(); text != said {
				said = text
				c.log.Warn("the list of controllers cannot be written: services may have no controller", "error", err)
			}
		}
		select {
		case list, ok := <-live:
			if !ok {
				return
			}
			members = list
			for _, why := range contested(list) {
				c.log.Warn("a certificate is in use twice", "why", why)
			}
			c.mutex.Lock()
			c.gone = withoutLease(c.gone, c.live, list)
			c.live = list
			c.mutex.Unlock()
			c.hub.Topics.SetControllers(alive(c.name, list))
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// leave gives up what this controller has as one of those that live.
func (c *controller) leave() {
	c.mutex.Lock()
	c.live, c.leads = nil, leadership{}
	c.mutex.Unlock()
	c.engine.Lead(0, func(string) bool { return false })
	c.hub.Topics.SetJudging(false)
	c.hub.Topics.SetControllers(nil)
}

// contested says of controllers that live who else is on the list by their name.
func contested(live []store.Member) (problems []string) {
	for _, m := range live {
		if m.Rival != "" {
			problems = append(problems, fmt.Sprintf("%s and %s both serve as %s: one has the other's certificate, unless it has just been restarted with another address",
				min(m.Address, m.Rival), max(m.Address, m.Rival), m.Name))
		}
	}
	return problems
}

// alive are the names of the controllers that live; none if self is not among them, as it may have missed who came.
func alive(self string, live []store.Member) (names []string) {
	for _, m := range live {
		names = append(names, m.Name)
	}
	if !slices.Contains(names, self) {
		return nil
	}
	return names
}

// withoutLease remembers who was on the list of those that live and is not any more.
func withoutLease(gone map[string]*ballastv1.NodeStatus, before, now []store.Member) map[string]*ballastv1.NodeStatus {
	next := maps.Clone(gone)
	if next == nil {
		next = map[string]*ballastv1.NodeStatus{}
	}
	for _, m := range before {
		next[m.Name] = &ballastv1.NodeStatus{Role: string(pki.Controller), Name: m.Name, Address: m.Address, Version: m.Version, Ready: hub.ReadyLost,
			LastSeen: timestamppb.Now(), Problems: []string{"its lease has ended"}}
	}
	for _, m := range now {
		delete(next, m.Name)
	}
	maps.DeleteFunc(next, func(_ string, n *ballastv1.NodeStatus) bool { return time.Since(n.LastSeen.AsTime()) > hub.LostLife })
	return next
}

// join puts this controller on the list of those that live, and delivers the list.
func (c *controller) join(ctx context.Context) <-chan []store.Member {
	self := store.Member{Name: c.name, Address: c.address, Version: c.options.Version, Addresses: c.credentials.Identity().Addresses}
	said := false
	for {
		live, err := c.store.Join(ctx, self)
		if err == nil {
			return live
		}
		if !said && ctx.Err() == nil {
			said = true
			c.log.Error("this controller cannot join the others yet, it leads nothing", "error", err)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			ended := make(chan []store.Member)
			close(ended)
			return ended
		}
	}
}

// lead takes over, or gives up, and says so once.
func (c *controller) lead(l leadership) {
	c.mutex.Lock()
	before := c.leads
	c.leads = l
	c.mutex.Unlock()
	if l.equal(before) {
		return
	}
	c.engine.Lead(l.term, func(service string) bool { return l.of(c.name, service) })
	c.hub.Topics.SetJudging(l.term != 0)
	if l.term == 0 {
		c.log.Warn("this controller leads no service any more: the others, if there are any, take over; load balancers that hear no other judge servers themselves")
		return
	}
	c.log.Info("services are divided among the controllers", "controllers", l.names, "term", l.term)
}

// agreed reports whether the list in the store is that of those that live.
func agreed(live []store.Member, current *documents.Snapshot) bool {
	return current != nil && slices.EqualFunc(live, current.Controllers.Members, func(m store.Member, stored documents.Member) bool {
		return stored == (documents.Member{Name: m.Name, Term: m.Term})
	})
}

// propose replaces the list of controllers in the store by those that live.
func (c *controller) propose(ctx context.Context, self string, live []store.Member) error {
	if c.mirror.Now() == nil || !slices.ContainsFunc(live, func(m store.Member) bool { return m.Name == self }) {
		return nil // who is not on the list of the living does not know it well
	}
	wanted := documents.Controllers{}
	for _, member := range live {
		wanted.Members = append(wanted.Members, documents.Member{Name: member.Name, Term: member.Term})
	}
	value, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return c.writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		if agreed(live, now) {
			return nil, nil
		}
		return []store.Document{{Key: documents.ControllersKey, Value: value, Revision: now.Revisions[documents.ControllersKey]}}, nil
	})
}
