package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// serviceFields is a service as clients give it: what is missing stays as it was. Servers have requests of their own: decoding a
// list onto another would mix them.
type serviceFields struct {
	*model.Service
	Servers json.RawMessage `json:"servers"`
}

// setFields sets the fields of s that body gives.
func setFields(s *model.Service, body json.RawMessage) error {
	given := serviceFields{Service: s}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if servers := string(given.Servers); servers != "" && servers != "null" && servers != "[]" {
		return errors.New("servers: they are not set with the service: add them with `ballast ctl server add`")
	}
	return nil
}

func (lb *LB) addService(r *http.Request) (any, error) {
	var body json.RawMessage
	if err := decodeStrictly(r, &body); err != nil {
		return nil, err
	}
	added := model.NewService()
	if err := setFields(&added, body); err != nil {
		return nil, api.BadRequest("%s", err)
	}
	return lb.change(func(fleet *model.Fleet) error {
		if fleet.Service(added.Name) != nil {
			return fmt.Errorf("there is a service %q already: change it with `ballast ctl service set`, or choose another name", added.Name)
		}
		fleet.Services = append(fleet.Services, added)
		return nil
	})
}

func (lb *LB) setService(r *http.Request) (any, error) {
	var body json.RawMessage
	if err := decodeStrictly(r, &body); err != nil {
		return nil, err
	}
	return lb.editService(r, func(s *model.Service) error {
		name := s.Name
		if err := setFields(s, body); err != nil {
			return err
		}
		if s.Name != name {
			return fmt.Errorf("name: %s cannot become %s: its removed servers and history go by the name: add a service instead", name, s.Name)
		}
		return nil
	})
}

func (lb *LB) removeService(r *http.Request) (any, error) {
	name := r.PathValue("service")
	return lb.change(func(fleet *model.Fleet) error {
		if fleet.Service(name) == nil {
			return noService(name)
		}
		fleet.Services = slices.DeleteFunc(fleet.Services, func(s model.Service) bool { return s.Name == name })
		return nil
	})
}

func noService(name string) error {
	return fmt.Errorf("there is no service %q: see `ballast ctl services`", name)
}

// resetCounters zeroes what was counted, and nothing that steers packets. A removed server counts as just heard of: its linger
// begins anew, which is the safe side.
func (lb *LB) resetCounters(*http.Request) (any, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	err := lb.path.ResetVerdictTraffic(0)
	for _, place := range lb.tables.Places() {
		err = errors.Join(err, lb.path.ResetVerdictTraffic(place.Number))
		for _, index := range place.Counters {
			err = errors.Join(err, lb.path.ResetServerTraffic(index))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reset counters: %w", err)
	}
	changes := []string{"counters of services and servers: reset"}
	lb.logChanges("ctl", changes)
	return api.Changed{Changes: changes}, nil
}
