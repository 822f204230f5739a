package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// remember keeps the store's list of load balancers. Those that join at the same time are written at once. Agents have no list: those of
// servers of the fleet are known to be missing without.
func (c *controller) remember(ctx context.Context) {
	tick := time.NewTicker(agePeriod) // for those that are lost too long, and what could not be written
	defer tick.Stop()
	said := ""
	for {
		now, changed := c.mirror.Next()
		if now != nil {
			err := c.rememberNow(ctx)
			if said != fmt.Sprint(err) && err != nil && ctx.Err() == nil {
				c.log.Warn("the store does not list the load balancers that are connected yet", "error", err)
			}
			said = fmt.Sprint(err)
		}
		select {
		case <-changed:
		case <-c.joined:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *controller) rememberNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	return c.writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		names := c.hub.Nodes.Remember(now.Balancers.Names)
		if slices.Equal(names, now.Balancers.Names) {
			return nil, nil
		}
		value, err := json.Marshal(documents.Balancers{Names: names})
		return []store.Document{{Key: documents.BalancersKey, Value: value, Revision: now.Revisions[documents.BalancersKey]}}, err
	})
}

// nodesChanged is called when nodes have come or gone.
func (c *controller) nodesChanged() {
	c.engine.SetLoadBalancers(c.hub.Nodes.LoadBalancers())
	select {
	case c.joined <- struct{}{}:
	default:
	}
}
