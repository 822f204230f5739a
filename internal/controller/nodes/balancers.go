// Package nodes is what a controller knows of the load balancers and agents of the fleet, connected or not.
package nodes

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// trackPeriod is how often load balancers are looked at that are lost too long, and what could not be written is tried
// again.
const trackPeriod = time.Minute

// Balancers keeps the store's list of load balancers. Agents have no list: those of servers of the fleet are known to
// be missing without.
type Balancers struct {
	mirror *desired.Mirror
	writer *desired.Writer
	list   func(before []string) []string // hub.Remember
	log    *slog.Logger
	wake   desired.Wake
}

// NewBalancers returns one that list tells the names of.
func NewBalancers(m *desired.Mirror, w *desired.Writer, list func(before []string) []string, log *slog.Logger) *Balancers {
	return &Balancers{m, w, list, log, desired.NewWake()}
}

// Wake is called when nodes have come or gone. Those that come at the same time are written at once.
func (b *Balancers) Wake() { b.wake.Call() }

// Run tracks load balancers until ctx ends.
func (b *Balancers) Run(ctx context.Context) {
	desired.Loop{Wake: b.wake, Period: trackPeriod, Step: b.store,
		Failed: func(err error) {
			b.log.Warn("the store does not list the load balancers that are connected yet", "error", err)
		}}.Run(ctx, b.mirror)
}

func (b *Balancers) store(ctx context.Context, _ *documents.Snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	return b.writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		names := b.list(now.Balancers.Names)
		if slices.Equal(names, now.Balancers.Names) {
			return nil, nil
		}
		document, err := now.Put(documents.BalancersKey, documents.Balancers{Names: names})
		return []store.Document{document}, err
	})
}
