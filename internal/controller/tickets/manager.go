// Package tickets makes and turns the keys of TLS session tickets. One controller of several does; all tell agents what
// is in the store.
package tickets

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	looks     = 5         // at which servers have the next key, in the time that all must have had it
	electedBy = "tickets" // the name that the controller which turns them is elected by, as for a service
)

// Options are what a manager needs.
type Options struct {
	Name   string // of this controller
	Mirror *desired.Mirror
	Writer *desired.Writer
	Leads  func(name string) bool // reports whether this controller leads what has a name
	Nodes  func() *rotation.Nodes // tells which nodes have which keys
	Settle time.Duration          // that all servers must have had a key before it is used
	Log    *slog.Logger
}

// Manager makes, turns and drops keys, where this controller leads them. It is safe for concurrent use.
type Manager struct {
	o       Options
	servers tracker
}

// New returns a manager.
func New(o Options) *Manager { return &Manager{o: o, servers: tracker{settle: o.Settle}} }

// Run makes, turns and drops keys until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	desired.Loop{Period: m.o.Settle / looks, Step: m.turn,
		Tick: func(now *documents.Snapshot) {
			if inUse(now) {
				m.observe(now)
			}
		},
		Failed: func(err error) { m.o.Log.Error("keys of session tickets stay as they are", "error", err) }}.Run(ctx, m.o.Mirror)
}

// observe finds out which servers have the next key.
func (m *Manager) observe(now *documents.Snapshot) (behind, own []string) {
	key := now.Tickets.Key(now.Tickets.Next())
	if key == nil {
		return nil, nil
	}
	fleet := now.Fleet()
	return m.servers.observe(m.o.Nodes(), &fleet, key)
}

// turn takes the next step, if it is time for one. People find in the history what people do.
func (m *Manager) turn(ctx context.Context, now *documents.Snapshot) error {
	var fresh rotation.TicketSecret
	rand.Read(fresh[:])
	step := func(now *documents.Snapshot) (next rotation.TicketKeys, changes []string) {
		if !inUse(now) {
			return next, nil
		}
		return now.Tickets.Step(time.Now().UTC(), fresh, m.servers.waits(now.Tickets.Key(now.Tickets.Next())))
	}
	if !m.o.Leads(electedBy) {
		return nil
	}
	if _, changes := step(now); len(changes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	by := api.Caller{Name: m.o.Name, Role: string(pki.Controller)}
	var done []string
	revision, err := m.o.Writer.Commit(ctx, &documents.Change{By: by}, func(now *documents.Snapshot) ([]store.Document, error) {
		var next rotation.TicketKeys
		if next, done = step(now); len(done) == 0 {
			return nil, nil
		}
		return put(now, &next)
	})
	if err == nil && len(done) > 0 {
		m.o.Log.Info("changed", "by", by, "revision", revision, "changes", done)
	}
	return err
}

func put(now *documents.Snapshot, t *rotation.TicketKeys) ([]store.Document, error) {
	document, err := now.PutTickets(t)
	return []store.Document{document}, err
}

// lateAfter is for how long nobody has to hear that the next key waits.
const lateAfter = time.Hour

// Problems says why the next key is not used.
func (m *Manager) Problems(now *documents.Snapshot) []string {
	if now == nil || !inUse(now) || now.Tickets.Current == 0 || time.Since(now.Tickets.Due()) < lateAfter {
		return nil
	}
	why := m.servers.waits(now.Tickets.Key(now.Tickets.Next()))
	return []string{fmt.Sprintf("keys of session tickets: epoch %d is in use since %s, the next one waits: %s", now.Tickets.Current, now.Tickets.Since.UTC().Format(time.RFC3339),
		strings.Join(why, "; "))}
}

// inUse reports whether a service needs keys of tickets.
func inUse(s *documents.Snapshot) bool {
	for _, d := range s.Services {
		if d.Service.Session == model.SessionTLS {
			return true
		}
	}
	return false
}
