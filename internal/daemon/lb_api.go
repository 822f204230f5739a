package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

func (lb *LB) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return lb.status(), nil })
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return lb.counters() })
	s.Handle("GET "+api.PathServices, func(*http.Request) (any, error) { return lb.services() })
	s.Handle("DELETE "+api.PathCounters, lb.resetCounters)
	s.Handle("POST "+api.PathServices, lb.addService)
	s.Handle("PATCH "+api.PathService, lb.setService)
	s.Handle("DELETE "+api.PathService, lb.removeService)
	s.Handle("POST "+api.PathServers, lb.addServer)
	s.Handle("DELETE "+api.PathServer, func(r *http.Request) (any, error) {
		return lb.editService(r, func(s *model.Service) error { return removeServer(s, r.PathValue("server")) })
	})
	s.Handle("POST "+api.PathServerAction, lb.serverAction)
	s.Handle("GET "+api.PathKeys, func(*http.Request) (any, error) { return lb.keys(), nil })
	s.Handle("POST "+api.PathKeys, lb.addKey)
	s.Handle("POST "+api.PathKeyAction, lb.keyAction)
	s.Handle("GET "+api.PathConfigDiff, func(*http.Request) (any, error) {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		return api.Changed{Changes: lb.node.Differences()}, nil
	})
	s.Handle("POST "+api.PathConfigAction, lb.configAction)
	s.HandleRaw("GET "+api.PathTrace, http.HandlerFunc(lb.serveTrace))
	s.HandleRaw("GET "+api.PathMetrics, lb.metricsHandler())
	return s
}

func (lb *LB) status() api.LBStatus {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	status := api.LBStatus{
		Status:     api.Status{Role: "lb", Ready: lb.ready, Version: lb.options.Version, Config: lb.file, Generation: lb.generation},
		Interfaces: map[string]string{},
	}
	for name, mode := range lb.modes {
		status.Interfaces[name] = string(mode)
	}
	for address, why := range lb.paths.why {
		status.Problems = append(status.Problems, fmt.Sprintf("server %s: %s", address, why))
	}
	slices.Sort(status.Problems)
	return status
}

// change runs an edit of the desired state and carries it out.
func (lb *LB) change(edit func(*model.Fleet) error) (api.Changed, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	before := lb.node
	changes, err := lb.node.Change(time.Now(), edit)
	if err != nil {
		return api.Changed{}, api.BadRequest("%s", err)
	}
	if err := lb.carryOut(before); err != nil {
		return api.Changed{}, err
	}
	lb.logChanges("ctl", changes)
	return api.Changed{Changes: changes}, nil
}

func (lb *LB) editService(r *http.Request, edit func(*model.Service) error) (api.Changed, error) {
	return lb.change(func(fleet *model.Fleet) error {
		s := fleet.Service(r.PathValue("service"))
		if s == nil {
			return noService(r.PathValue("service"))
		}
		return edit(s)
	})
}

func (lb *LB) addServer(r *http.Request) (any, error) {
	server := model.NewServer()
	if err := decodeStrictly(r, &server); err != nil {
		return nil, err
	}
	changed, err := lb.editService(r, func(s *model.Service) error {
		if server.ID == 0 {
			server.ID = lb.node.NextID(s)
		}
		s.Servers = append(s.Servers, server)
		return nil
	})
	changed.ID = server.ID
	return changed, err
}

func removeServer(s *model.Service, name string) error {
	before := len(s.Servers)
	s.Servers = slices.DeleteFunc(s.Servers, func(server model.Server) bool { return server.Name == name })
	if len(s.Servers) == before {
		return noServer(s, name)
	}
	return nil
}

func noServer(s *model.Service, name string) error {
	return fmt.Errorf("service %s has no server %q: see `ballast ctl servers`", s.Name, name)
}

func (lb *LB) serverAction(r *http.Request) (any, error) {
	name, action := r.PathValue("server"), r.PathValue("action")
	if action == "forget" {
		return lb.forget(r.PathValue("service"), name)
	}
	var weight api.Weight
	if action == "weight" {
		if err := decodeStrictly(r, &weight); err != nil {
			return nil, err
		}
	}
	return lb.editService(r, func(s *model.Service) error {
		server := s.Server(name)
		if server == nil {
			return noServer(s, name)
		}
		switch action {
		case "drain":
			server.State = model.StateDraining
		case "undrain":
			server.State = model.StateActive
		case "weight":
			server.Weight = weight.Weight
		default:
			return fmt.Errorf("unknown action %q: use drain, undrain, weight or forget", action)
		}
		return nil
	})
}

func (lb *LB) forget(service, server string) (any, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	before := lb.node
	before.Removed = slices.Clone(before.Removed)
	if err := lb.node.Forget(service, server); err != nil {
		return nil, api.BadRequest("%s", err)
	}
	return api.Changed{Changes: []string{"service " + service + ": removed server " + server + " forgotten"}}, lb.carryOut(before)
}

func (lb *LB) keys() api.KeyStatus {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	keys := lb.node.Running.Keys
	return api.KeyStatus{Epochs: slices.Sorted(maps.Keys(keys.Cookie)), Current: keys.Current}
}

func (lb *LB) addKey(r *http.Request) (any, error) {
	var wanted api.NewKey
	if err := decodeStrictly(r, &wanted); err != nil {
		return nil, err
	}
	var key [16]byte
	if wanted.Secret == "" {
		rand.Read(key[:])
	} else if secret, err := hex.DecodeString(wanted.Secret); err == nil && len(secret) == len(key) {
		copy(key[:], secret)
	} else {
		return nil, api.BadRequest("secret: it must be 32 hexadecimal digits: make one with `ballast ctl key generate`")
	}
	_, err := lb.change(func(fleet *model.Fleet) error {
		if wanted.Epoch == 0 {
			wanted.Epoch = fleet.Keys.Current + 1
		}
		if _, ok := fleet.Keys.Cookie[wanted.Epoch]; ok {
			return fmt.Errorf("epoch %d has a key already: drop it first, or use the next epoch", wanted.Epoch)
		}
		if fleet.Keys.Cookie == nil {
			fleet.Keys.Cookie = map[uint32][16]byte{}
		}
		fleet.Keys.Cookie[wanted.Epoch] = key
		return nil
	})
	return api.KeyAdded{Epoch: wanted.Epoch, Secret: hex.EncodeToString(key[:])}, err
}

func (lb *LB) keyAction(r *http.Request) (any, error) {
	epoch, err := strconv.ParseUint(r.PathValue("epoch"), 10, 32)
	if err != nil {
		return nil, api.BadRequest("epoch %q is not a number", r.PathValue("epoch"))
	}
	return lb.change(func(fleet *model.Fleet) error {
		if _, ok := fleet.Keys.Cookie[uint32(epoch)]; !ok {
			return fmt.Errorf("epoch %d has no key: see `ballast ctl keys`", epoch)
		}
		switch r.PathValue("action") {
		case "use":
			fleet.Keys.Current = uint32(epoch)
		case "drop":
			delete(fleet.Keys.Cookie, uint32(epoch))
		default:
			return fmt.Errorf("unknown action %q: use or drop", r.PathValue("action"))
		}
		return nil
	})
}

func (lb *LB) configAction(r *http.Request) (any, error) {
	switch r.PathValue("action") {
	case "reload":
		if err := lb.Reload(); err != nil {
			return nil, api.BadRequest("%s", err)
		}
		return api.Changed{}, nil
	case "reset":
		return lb.change(func(fleet *model.Fleet) error {
			*fleet = lb.node.Base.Clone()
			return nil
		})
	}
	return nil, api.BadRequest("unknown action %q: use reload or reset", r.PathValue("action"))
}

// maxBody bounds what a client may send.
const maxBody = 64 << 10

func decodeStrictly(r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return api.BadRequest("read the request: %s", err)
	}
	return nil
}
