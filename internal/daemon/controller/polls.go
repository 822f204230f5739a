package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/model"
)

// poller asks the servers of a service for their load until ctx ends.
type poller func(ctx context.Context, service model.Service, told func(id uint16, told balance.Told))

// polls are the services whose servers are being asked.
type polls struct {
	running sync.WaitGroup
	asked   map[*account]asked
}

type asked struct {
	service model.Service
	cancel  context.CancelFunc
}

// keep begins to ask the servers of a service that is led, or ends it, or begins anew as the service has changed.
func (p *polls) keep(ctx context.Context, a *account, poll poller) {
	a.mutex.Lock()
	service := a.view.Service
	wanted := poll != nil && a.lead && service.Load.Source == model.LoadEndpoint
	a.mutex.Unlock()
	now, is := p.asked[a]
	if is == wanted && (!is || now.service.Load == service.Load && slices.Equal(now.service.Ports, service.Ports) && slices.Equal(now.service.Servers, service.Servers)) {
		return
	}
	if is {
		now.cancel()
		delete(p.asked, a)
	}
	if !wanted {
		return
	}
	if p.asked == nil {
		p.asked = map[*account]asked{}
	}
	ctx, cancel := context.WithCancel(ctx)
	p.asked[a] = asked{service, cancel}
	p.running.Go(func() {
		poll(ctx, service, func(id uint16, told balance.Told) { a.toldLoad(time.Now(), id, told) })
	})
}

func (p *polls) stop() {
	for _, one := range p.asked {
		one.cancel()
	}
	p.running.Wait()
}
