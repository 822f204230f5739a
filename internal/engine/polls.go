package engine

import (
	"log/slog"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/poll"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/model"
)

// targets are the endpoints to ask: of the services that are led, so that applications are asked by one controller only. The caller
// holds the lock.
func (e *Engine) targets() (targets []poll.Target) {
	for _, a := range e.accounts {
		targets = append(targets, a.targets(e.options.Log)...)
	}
	return targets
}

func (a *account) targets(log *slog.Logger) (targets []poll.Target) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	s := &a.view.Service
	if !a.lead || s.Load.Source != model.LoadEndpoint {
		a.silent = nil
		return nil
	}
	for i := range s.Servers {
		if s.Servers[i].State == model.StateOff {
			continue
		}
		url, err := poll.URL(s.Load.Endpoint, s.Servers[i].Address)
		if err != nil {
			log.Error("load is not polled", "service", a.name, "error", err)
			return nil
		}
		targets = append(targets, poll.Target{Service: a.name, ID: s.Servers[i].ID, URL: url, Interval: time.Duration(s.Load.Interval)})
	}
	return targets
}

// polled takes what an application said, and says once that it says nothing.
func (e *Engine) polled(r poll.Result) {
	a := e.account(r.Service)
	if a == nil {
		return
	}
	if r.Err == nil {
		a.toldLoad(time.Now(), r.ID, toldByApplication(&r))
	}
	switch fell, rose := a.noteSilence(r.ID, r.Err != nil); {
	case fell:
		e.options.Log.Warn("an application does not report its load: the next source is used", "service", r.Service, "id", r.ID, "error", r.Err)
	case rose:
		e.options.Log.Info("an application reports its load again", "service", r.Service, "id", r.ID)
	}
}

func toldByApplication(r *poll.Result) balance.Told {
	s := &r.Status
	return balance.Told{
		FromEndpoint: true, HasQueue: s.HasOutstanding, MeanQueue: s.Outstanding, Capacity: s.Capacity,
		HasCPU: s.HasCPU, CPUPermille: uint16(1000 * s.CPU), Answered: r.Answered, Failed: r.Failed,
	}
}

// noteSilence reports whether a server has just fallen silent, or just speaks again.
func (a *account) noteSilence(id uint16, silent bool) (fell, rose bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	was := a.silent[id]
	if silent && a.silent == nil {
		a.silent = map[uint16]bool{}
	}
	if silent {
		a.silent[id] = true
	} else {
		delete(a.silent, id)
	}
	return silent && !was, was && !silent
}
