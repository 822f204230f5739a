// What operators ask of the keys.
package tickets

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/store"
)

// errNone is why nothing is to be done about keys.
var errNone = connect.NewError(connect.CodeFailedPrecondition, errors.New("there are no keys of session tickets: controllers make them as soon as a service has `session: tls`"))

// change carries out what somebody asks for; see api.Desired.
func (m *Manager) change(
	ctx context.Context, dryRun bool, decide func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error),
) (changes []string, revision uint64, err error) {
	return m.o.Writer.Record(ctx, dryRun, func(now *documents.Snapshot) (changes []string, wanted []store.Document, err error) {
		if now.Tickets.Current == 0 {
			return nil, nil, errNone
		}
		next, change, err := decide(now)
		if err != nil || change == "" {
			return nil, nil, err
		}
		wanted, err = put(now, &next)
		return []string{change}, wanted, err
	})
}

// Use has tickets made by the key of an epoch; see api.Desired.
func (m *Manager) Use(ctx context.Context, dryRun bool, epoch uint32, force bool) (changes []string, revision uint64, err error) {
	return m.change(ctx, dryRun, func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error) {
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
			m.observe(now)
			refused = append(m.servers.waits(key), t.Full()...)
		} else {
			fleet := now.Fleet()
			refused, _ = m.o.Nodes().TicketsBehind(&fleet, key)
		}
		if !force && len(refused) > 0 {
			return next, "", api.Unready(refused)
		}
		return t.Using(time.Now().UTC(), epoch), fmt.Sprintf("ticket keys: epoch %d is used in place of %d", epoch, t.Current), nil
	})
}

// Revoke puts a new key in the place of all; see api.Desired.
func (m *Manager) Revoke(ctx context.Context, dryRun bool, newest uint32) (changes []string, revision uint64, err error) {
	var fresh rotation.TicketSecret
	rand.Read(fresh[:])
	return m.change(ctx, dryRun, func(now *documents.Snapshot) (next rotation.TicketKeys, change string, err error) {
		if newest != 0 && !now.Tickets.Has(newest) {
			return next, "", nil
		}
		next = now.Tickets.Revoked(time.Now().UTC(), fresh)
		return next, fmt.Sprintf("ticket keys: all before epoch %d are revoked", next.Current), nil
	})
}

// List tells of the keys; see api.Desired.
func (m *Manager) List() (*ballastv1.ListTicketKeysResponse, error) {
	now := m.o.Mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	t := &now.Tickets
	answer := &ballastv1.ListTicketKeysResponse{Needed: inUse(now), Current: t.Current}
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
		_, answer.Own = m.observe(now)
		answer.Behind = m.servers.waits(key)
	}
	return answer, nil
}
