package controller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// findings are what the engine asks to be written down. The newest of a service counts; what fails is asked for again by the engine.
type findings struct {
	wake chan struct{}

	mutex  sync.Mutex
	unwell map[string]node.Unhealthy
	ended  map[serverOf]bool
}

type serverOf struct {
	service string
	id      uint16
}

func (f *findings) health(service string, found node.Unhealthy) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.unwell == nil {
		f.unwell = map[string]node.Unhealthy{}
	}
	f.unwell[service] = node.Unhealthy{Down: slices.Clone(found.Down), Kept: slices.Clone(found.Kept), Cut: slices.Clone(found.Cut)}
	f.wakeUp()
}

func (f *findings) off(service string, id uint16) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.ended == nil {
		f.ended = map[serverOf]bool{}
	}
	f.ended[serverOf{service, id}] = true
	f.wakeUp()
}

func (f *findings) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *findings) take() (unwell map[string]node.Unhealthy, ended map[serverOf]bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	unwell, ended = f.unwell, f.ended
	f.unwell, f.ended = nil, nil
	return unwell, ended
}

// write carries findings out.
func (c *controller) write(ctx context.Context) {
	said := ""
	var again <-chan time.Time // after what failed: it may not be asked for again
	for {
		select {
		case <-c.findings.wake:
		case <-again:
			again = nil
			c.judging(true)
			continue
		case <-ctx.Done():
			return
		}
		unwell, ended := c.findings.take()
		err := c.writeAll(ctx, unwell, ended)
		c.judging(err == nil)
		if err == nil || ctx.Err() != nil {
			said, again = "", nil
			continue
		}
		again = time.After(judgeAgain)
		if text := err.Error(); text != said {
			said = text
			c.log.Error("results of health checks cannot be stored: load balancers that hear no other controller judge servers themselves", "error", err)
		}
	}
}

// judgeAgain is how long a controller that could not store results of checks counts as one that judges nobody.
const judgeAgain = 10 * time.Second

// judging tells load balancers whether this controller judges servers: it leads, and can write to the store.
func (c *controller) judging(writes bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.hub.Topics.SetJudging(writes && c.leads.term != 0)
}

func (c *controller) writeAll(ctx context.Context, unwell map[string]node.Unhealthy, ended map[serverOf]bool) error {
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	ctx = api.WithCaller(ctx, api.Caller{Name: c.name, Role: string(pki.Controller)})
	before := c.mirror.Now()
	if len(unwell) > 0 {
		if err := c.editor.SetHealth(ctx, unwell); err != nil {
			return err
		}
		c.logHealth(before, unwell)
	}
	for server := range ended {
		if err := c.editor.SwitchOff(ctx, server.service, server.id); err != nil {
			return err
		}
	}
	return nil
}

// logHealth says who has fallen and who is back, and why.
func (c *controller) logHealth(before *documents.Snapshot, unwell map[string]node.Unhealthy) {
	for _, name := range slices.Sorted(maps.Keys(unwell)) {
		was, is := &node.Unhealthy{}, unwell[name]
		if before != nil && before.Health[name] != nil {
			was = before.Health[name]
		}
		for _, s := range c.engine.Servers(name) {
			id := s.Server.ID
			fell, cut, kept := slices.Contains(is.Down, id), slices.Contains(is.Cut, id), slices.Contains(is.Kept, id) && !slices.Contains(was.Kept, id)
			switch {
			case name == model.SecondTierName && fell && !slices.Contains(was.Down, id):
				c.log.Warn("node of the second tier unhealthy: its packets go to the others", "node", s.Server.Name, "reason", s.HealthDetail)
			case kept:
				c.log.Warn("server unhealthy, and gets new connections all the same: no server is healthy", "service", name, "server", s.Server.Name, "reason", s.HealthDetail)
			case name == model.SecondTierName && !fell && slices.Contains(was.Down, id):
				c.log.Info("node of the second tier gets packets again", "node", s.Server.Name, "health", s.Health)
			case cut && !slices.Contains(was.Cut, id):
				c.log.Warn("server unhealthy for too long: its connections are cut", "service", name, "server", s.Server.Name)
			case fell && !slices.Contains(was.Down, id):
				c.log.Warn("server unhealthy: no new connections", "service", name, "server", s.Server.Name, "reason", s.HealthDetail)
			case !fell && slices.Contains(was.Down, id) && !s.Removed:
				c.log.Info("server gets new connections again", "service", name, "server", s.Server.Name, "health", s.Health)
			}
		}
	}
}
