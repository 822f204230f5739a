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
	for _, state := range e.services {
		targets = append(targets, state.targets(e.options.Log)...)
	}
	return targets
}

func (s *serviceState) targets(log *slog.Logger) (targets []poll.Target) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	service := &s.view.Service
	if !s.lead || service.Load.Source != model.LoadEndpoint {
		s.silent = nil
		return nil
	}
	for i := range service.Servers {
		if service.Servers[i].State == model.StateOff {
			continue
		}
		url, err := poll.URL(service.Load.Endpoint, service.Servers[i].Address)
		if err != nil {
			log.Error("load is not polled", "service", s.name, "error", err)
			return nil
		}
		targets = append(targets, poll.Target{Service: s.name, ID: service.Servers[i].ID, URL: url, Interval: time.Duration(service.Load.Interval)})
	}
	return targets
}

// polled takes what an application reported, and logs once that it reports nothing.
func (e *Engine) polled(r poll.Result) {
	state := e.service(r.Service)
	if state == nil {
		return
	}
	if r.Err == nil {
		state.reportLoad(time.Now(), r.ID, applicationLoad(&r))
	}
	switch fell, rose := state.noteSilence(r.ID, r.Err != nil); {
	case fell:
		e.options.Log.Warn("an application does not report its load: the next source is used", "service", r.Service, "id", r.ID, "error", r.Err)
	case rose:
		e.options.Log.Info("an application reports its load again", "service", r.Service, "id", r.ID)
	}
}

func applicationLoad(r *poll.Result) balance.Report {
	s := &r.Status
	return balance.Report{
		FromEndpoint: true, HasQueue: s.HasOutstanding, MeanQueue: s.Outstanding, Capacity: s.Capacity,
		HasCPU: s.HasCPU, CPUPermille: uint16(1000 * s.CPU), Answered: r.Answered, Failed: r.Failed,
	}
}

// noteSilence reports whether a server has just fallen silent, or just speaks again.
func (s *serviceState) noteSilence(id uint16, silent bool) (fell, rose bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	was := s.silent[id]
	if silent && s.silent == nil {
		s.silent = map[uint16]bool{}
	}
	if silent {
		s.silent[id] = true
	} else {
		delete(s.silent, id)
	}
	return silent && !was, was && !silent
}
