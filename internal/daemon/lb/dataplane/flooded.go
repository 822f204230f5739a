// What syn_proxy auto goes by: SYNs of services, and whether load balancers answer them.
package dataplane

import (
	"maps"

	"github.com/ballast-lb/ballast/internal/model"
)

// SetFlooded turns syn_proxy auto of a service on or off. A service that has no auto any more stays as it is.
func (t *Tables) SetFlooded(service string, flooded bool) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	state := t.Now().State
	if s := state.Running.Service(service); s == nil || s.SYNProxy != model.SYNProxyAuto || !t.Now().Followed || t.flooded[service] == flooded {
		return nil
	}
	before := maps.Clone(t.flooded)
	if t.flooded[service] = true; !flooded {
		delete(t.flooded, service)
	}
	err := t.follow(state)
	if err != nil {
		t.flooded = before
	}
	return err
}

// SYNs is how many of a service there were here: those that servers got, and those that were answered. What servers get of connections that have begun
// here is among the former.
func (s *Snapshot) SYNs(service string) (sent, answered uint64, err error) {
	place := s.Places[service]
	for _, index := range place.Counters {
		traffic, err := s.path.ServerTraffic(index)
		if err != nil {
			return 0, 0, err
		}
		sent += traffic.Connections
	}
	answered, err = s.path.AnsweredSYNs(place)
	return sent, answered, err
}
