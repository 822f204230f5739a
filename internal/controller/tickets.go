// Keys of TLS session tickets. One controller of several makes and turns them; all tell agents what is in the store.
package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	ticketLooks = 5         // at which servers have the next key, in the time that all must have had it
	ticketsName = "tickets" // that the controller which turns them is elected by, as for a service
)

// usesTickets reports whether a service needs keys of tickets.
func usesTickets(s *documents.Snapshot) bool {
	for _, d := range s.Services {
		if d.Service.Session == model.SessionTLS {
			return true
		}
	}
	return false
}

// ticketKeeper knows which servers have the next key.
type ticketKeeper struct {
	settle time.Duration

	mutex  sync.Mutex
	next   string   // fingerprint of the key
	behind []string // why tickets must not be made by it yet
	own    []string // agents with keys of their own
	since  time.Time
}

// look finds out who has a key.
func (k *ticketKeeper) look(nodes *rotation.Nodes, fleet *model.Fleet, key *rotation.TicketKey) (behind, own []string) {
	behind, own = nodes.TicketsBehind(fleet, key)
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if next := string(key.Fingerprint()); next != k.next || len(behind) > 0 || len(k.behind) > 0 {
		k.next, k.since = next, time.Now()
	}
	k.behind, k.own = behind, own
	return behind, own
}

// waits says why tickets must not be made by a key yet, as was seen last.
func (k *ticketKeeper) waits(key *rotation.TicketKey) []string {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	switch {
	case key == nil || k.next != string(key.Fingerprint()):
		return []string{"which servers have the next key is not known yet"}
	case len(k.behind) > 0:
		return k.behind
	case time.Since(k.since) < k.settle:
		return []string{fmt.Sprintf("servers have had the next key for less than %v: applications may have to read it yet", k.settle)}
	}
	return nil
}

// keepTickets makes, turns and drops keys where this controller leads them, until ctx ends.
func (c *controller) keepTickets(ctx context.Context) {
	tick := time.NewTicker(c.tickets.settle / ticketLooks)
	defer tick.Stop()
	said := ""
	for {
		now, changed := c.mirror.Next()
		if now != nil {
			err := c.turnTickets(ctx, now)
			if said != fmt.Sprint(err) && err != nil && ctx.Err() == nil {
				c.log.Error("keys of session tickets stay as they are", "error", err)
			}
			said = fmt.Sprint(err)
		}
		select {
		case <-changed:
		case <-tick.C:
			if now != nil && usesTickets(now) {
				c.lookAtTickets(now)
			}
		case <-ctx.Done():
			return
		}
	}
}

// lookAtTickets finds out which servers have the next key.
func (c *controller) lookAtTickets(now *documents.Snapshot) (behind, own []string) {
	key := now.Tickets.Key(now.Tickets.Next())
	if key == nil {
		return nil, nil
	}
	fleet := now.Fleet()
	return c.tickets.look(c.hub.Nodes.Keys(), &fleet, key)
}

// turnTickets takes the next step, if it is time for one. People find in the history what people do.
func (c *controller) turnTickets(ctx context.Context, now *documents.Snapshot) error {
	var fresh rotation.TicketSecret
	rand.Read(fresh[:])
	step := func(now *documents.Snapshot) (next rotation.TicketKeys, changes []string) {
		if !usesTickets(now) {
			return next, nil
		}
		return now.Tickets.Step(time.Now().UTC(), fresh, c.tickets.waits(now.Tickets.Key(now.Tickets.Next())))
	}
	if !c.leadsService(ticketsName) {
		return nil
	}
	if _, changes := step(now); len(changes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	by := api.Caller{Name: c.name, Role: string(pki.Controller)}
	var done []string
	revision, err := c.writer.Commit(ctx, &documents.Change{By: by}, func(now *documents.Snapshot) ([]store.Document, error) {
		var next rotation.TicketKeys
		if next, done = step(now); len(done) == 0 {
			return nil, nil
		}
		return withTickets(now, &next)
	})
	if err == nil && len(done) > 0 {
		c.log.Info("changed", "by", by, "revision", revision, "changes", done)
	}
	return err
}

func withTickets(now *documents.Snapshot, t *rotation.TicketKeys) ([]store.Document, error) {
	document, err := now.Put(documents.TicketsKey, documents.Tickets(t))
	return []store.Document{document}, err
}

// ticketsLate is for how long nobody has to hear that the next key waits.
const ticketsLate = time.Hour

// ticketProblems says why the next key is not used.
func (c *controller) ticketProblems(now *documents.Snapshot) []string {
	if now == nil || !usesTickets(now) || now.Tickets.Current == 0 || time.Since(now.Tickets.Due()) < ticketsLate {
		return nil
	}
	why := c.tickets.waits(now.Tickets.Key(now.Tickets.Next()))
	return []string{fmt.Sprintf("keys of session tickets: epoch %d is in use since %s, the next one waits: %s", now.Tickets.Current, now.Tickets.Since.UTC().Format(time.RFC3339),
		strings.Join(why, "; "))}
}

// errNoTickets is why nothing is to be done about keys.
var errNoTickets = connect.NewError(connect.CodeFailedPrecondition, errors.New("there are no keys of session tickets: controllers make them as soon as a service has `session: tls`"))

// changeTickets carries out what somebody asks for; see api.Desired.
func (f fleetOf) changeTickets(ctx context.Context, decide func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error)) (changes []string, revision uint64, err error) {
	return f.writer.Record(ctx, func(now *documents.Snapshot) (changes []string, wanted []store.Document, err error) {
		if now.Tickets.Current == 0 {
			return nil, nil, errNoTickets
		}
		next, change, err := decide(now)
		if err != nil || change == "" {
			return nil, nil, err
		}
		wanted, err = withTickets(now, &next)
		return []string{change}, wanted, err
	})
}

// UseTicketKey implements api.Desired.
func (f fleetOf) UseTicketKey(ctx context.Context, epoch uint32, force bool) (changes []string, revision uint64, err error) {
	return f.changeTickets(ctx, func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error) {
		t, epoch := &now.Tickets, epoch
		if epoch == 0 {
			epoch = t.Next()
		}
		key := t.Key(epoch)
		if epoch == 0 {
			return next, "", connect.NewError(connect.CodeFailedPrecondition, errors.New("the next key of session tickets is not made yet: try again in a second"))
		}
		if key == nil {
			return next, "", connect.NewError(connect.CodeNotFound, fmt.Errorf("epoch %d has no key of session tickets: see `ballast ctl ticket list`", epoch))
		}
		if epoch == t.Current {
			return next, "", nil
		}
		var refused []string
		if epoch == t.Next() {
			f.lookAtTickets(now)
			refused = append(f.tickets.waits(key), t.Full()...)
		} else {
			fleet := now.Fleet()
			refused, _ = f.hub.Nodes.Keys().TicketsBehind(&fleet, key)
		}
		if !force && len(refused) > 0 {
			return next, "", api.Unready(refused)
		}
		return t.Using(time.Now().UTC(), epoch), fmt.Sprintf("ticket keys: epoch %d is used in place of %d", epoch, t.Current), nil
	})
}

// RevokeTicketKeys implements api.Desired.
func (f fleetOf) RevokeTicketKeys(ctx context.Context, newest uint32) (changes []string, revision uint64, err error) {
	var fresh rotation.TicketSecret
	rand.Read(fresh[:])
	return f.changeTickets(ctx, func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error) {
		if newest != 0 && !now.Tickets.Has(newest) {
			return next, "", nil
		}
		next = now.Tickets.Revoked(time.Now().UTC(), fresh)
		return next, fmt.Sprintf("ticket keys: all before epoch %d are revoked", next.Current), nil
	})
}

// TicketKeys implements api.Desired.
func (f fleetOf) TicketKeys(context.Context) (*ballastv1.ListTicketKeysResponse, error) {
	now := f.mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	t := &now.Tickets
	answer := &ballastv1.ListTicketKeysResponse{Needed: usesTickets(now), Current: t.Current}
	for i := range t.Keys {
		k := &t.Keys[i]
		status := &ballastv1.TicketKeyStatus{Epoch: k.Epoch, Made: timestamppb.New(k.Made)}
		if k.Epoch < t.Current {
			status.Expires = timestamppb.New(t.Expires(k))
		}
		answer.Keys = append(answer.Keys, status)
	}
	if key := t.Key(t.Next()); key != nil && answer.Needed {
		answer.Due = timestamppb.New(t.Due())
		_, answer.Own = f.lookAtTickets(now)
		answer.Behind = f.tickets.waits(key)
	}
	return answer, nil
}
