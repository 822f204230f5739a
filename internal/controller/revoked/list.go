// Package revoked is about revoked certificates: a list in the store that only grows, until they have expired.
package revoked

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// grace is how long an entry is kept after what it is about has expired: clocks differ.
const grace = 24 * time.Hour

// Options are what a list needs.
type Options struct {
	Name        string // of this controller
	Mirror      *desired.Mirror
	Writer      *desired.Writer
	Hub         *hub.Hub
	Credentials *pki.Credentials
	Log         *slog.Logger
}

// List is the list, as the store has it and as this process goes by it.
type List struct{ o Options }

// NewList returns a list.
func NewList(o Options) *List { return &List{o} }

// All returns what this process goes by, oldest first.
func (l *List) All() ([]pki.Revocation, error) {
	if l.o.Mirror.Now() == nil {
		return nil, desired.ErrUnknown
	}
	return l.o.Credentials.Revoked(), nil
}

func revocations(now *documents.Snapshot) []pki.Revocation {
	list := make([]pki.Revocation, 0, len(now.Revoked))
	for _, key := range slices.Sorted(maps.Keys(now.Revoked)) {
		list = append(list, *now.Revoked[key])
	}
	return list
}

// Run goes by what the store says of certificates, whatever else is wrong with it, until ctx ends.
func (l *List) Run(ctx context.Context) {
	said := ""
	var seen map[string]*pki.Revocation
	for {
		now, changed := l.o.Mirror.Next()
		if now != nil && (seen == nil || !maps.Equal(seen, now.Revoked)) { // whoever changes an entry makes another
			seen = now.Revoked
			news, err := l.o.Credentials.Revoke(revocations(now), time.Now())
			if len(news) > 0 {
				l.o.Hub.Topics.SetRevoked(l.o.Credentials.Revoked(), news)
				l.o.Log.Warn("certificates are revoked: they are refused from now on", "number", len(news), "last", news[len(news)-1].What())
			}
			if text := fmt.Sprint(err); err != nil && text != said {
				said = text
				l.o.Log.Error("a part of the list of revoked certificates is not taken", "error", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Keep writes what this controller knows and a store that was restored from a copy does not, and drops what has expired
// or is of another authority.
func (l *List) Keep(ctx context.Context, at time.Time) error {
	known := l.o.Credentials.Revoked()
	stale := func(now *documents.Snapshot) (changed []store.Document, err error) {
		for i := range known {
			if r := &known[i]; now.Revoked[r.Key()] == nil && at.Before(r.Ends) {
				document, err := now.Put(documents.RevokedPrefix+r.Key(), r)
				if err != nil {
					return nil, err
				}
				changed = append(changed, document)
			}
		}
		for key, r := range now.Revoked {
			if !at.Before(r.Ends.Add(grace)) || l.o.Credentials.Foreign(r) {
				changed = append(changed, now.Delete(documents.RevokedPrefix+key))
			}
		}
		return changed, nil
	}
	if now := l.o.Mirror.Now(); now == nil {
		return nil
	} else if changed, err := stale(now); err != nil || len(changed) == 0 {
		return err
	}
	_, err := l.o.Writer.Commit(ctx, &documents.Change{}, stale)
	return err
}
