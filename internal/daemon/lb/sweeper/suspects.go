// Clients whose packets visit a scrubber first.
package sweeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
)

// Suspect is a client, or a network of them, whose packets to a service visit its scrubber first. It is saved as it is.
type Suspect struct {
	Service string       `json:"service"`
	Client  netip.Prefix `json:"client"`
	Until   time.Time    `json:"until,omitzero"` // zero: until it is cleared
}

func (s *Suspect) is(service string, client netip.Prefix) bool {
	return s.Service == service && s.Client == client
}

// suspects are those of all services.
type suspects struct {
	list    []Suspect // replaced, never changed
	by      map[string]*serviceSuspects
	changes uint64

	written   []lb.Suspect // to the data path
	isWritten bool         // and nothing else is there
	listed    listed       // the list of tables then
}

// serviceSuspects are those of one service.
type serviceSuspects struct {
	networks []netip.Prefix
	contain  func(netip.Addr) bool
}

func (s *suspects) replace(list []Suspect) {
	s.list, s.by = list, map[string]*serviceSuspects{}
	for i := range list {
		by := s.by[list[i].Service]
		if by == nil {
			by = &serviceSuspects{}
			s.by[list[i].Service] = by
		}
		by.networks = append(by.networks, list[i].Client)
	}
	for _, by := range s.by {
		by.contain = connections.NewSuspectNetworks(by.networks).Contain
	}
	s.changes++
}

// Suspects are those there are now, to be saved. The list is never changed.
func (k *Sweeper) Suspects() []Suspect {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.suspects.list
}

// Load goes on with the suspects that an earlier process has saved.
func (k *Sweeper) Load(list []Suspect) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.suspects.replace(list)
}

// expire drops suspects whose time is over or whose service keeps no table any more, and tells the data path who is left when it may not
// know. It reports whether there were any.
func (h held) expire(now time.Time) (changed bool) {
	over := func(s Suspect) bool {
		service := h.now.Running.Service(s.Service)
		return !s.Until.IsZero() && !now.Before(s.Until) || service == nil || service.Affinity != model.AffinityTable
	}
	if changed = slices.ContainsFunc(h.suspects.list, over); changed {
		for _, s := range h.suspects.list {
			if over(s) {
				h.Log.Info("no suspect any more", "service", s.Service, "client", s.Client)
			}
		}
		h.suspects.replace(slices.DeleteFunc(slices.Clone(h.suspects.list), over))
	}
	if err := h.setSuspects(); err != nil {
		h.Log.Error("suspects' new connections do not visit scrubbers", "error", err)
	}
	return changed
}

// setSuspects tells the data path, which knows services by number, of suspects.
func (h held) setSuspects() error {
	h.list()
	s := &h.suspects
	if s.listed == h.listed {
		return nil
	}
	var all []lb.Suspect
	for _, t := range h.tables {
		if by := s.by[t.service]; by != nil {
			for _, network := range by.networks {
				all = append(all, lb.Suspect{Service: t.number, Client: network})
			}
		}
	}
	if !s.isWritten || !slices.Equal(all, s.written) {
		s.isWritten = false
		if err := h.path.SetSuspects(all); err != nil {
			return err
		}
	}
	s.listed, s.written, s.isWritten = h.listed, all, true
	return nil
}

// ListSuspects answers GET of api.PathSuspects.
func (k *Sweeper) ListSuspects(*http.Request) (any, error) {
	out := []api.Suspect{}
	for _, s := range k.Suspects() {
		out = append(out, api.Suspect{Service: s.Service, Client: s.Client, Until: s.Until})
	}
	return out, nil
}

// SetSuspect answers POST of api.PathSuspects.
func (k *Sweeper) SetSuspect(r *http.Request, dryRun bool) (any, error) {
	return k.changeSuspects(r, dryRun, func(service *model.Service, s api.Suspect, before []Suspect) (after []Suspect, changes string, err error) {
		if service.Table.Scrubber == "" {
			return nil, "", api.BadRequest("service %s has no scrubber: name one of its servers as its table's scrubber, with weight 0", s.Service)
		}
		if s.Client.Addr().Is6() && !service.HasIPv6() || s.Client.Addr().Is4() && !service.HasIPv4() {
			return nil, "", api.BadRequest("the clients of service %s come by the family of its VIP %s, %s is %s", s.Service, service.Where(), s.Client, family(s.Client))
		}
		added := Suspect{Service: s.Service, Client: s.Client}
		changes = fmt.Sprintf("service %s: suspect %s visits scrubber %s", s.Service, s.Client, service.Table.Scrubber)
		if err := s.For.Check(); err != nil {
			return nil, "", api.BadRequest("a suspect for %s", err)
		}
		if s.For > 0 {
			added.Until = time.Now().Add(s.For.Duration()).UTC().Truncate(time.Second)
			changes += " until " + added.Until.Format(time.RFC3339)
		}
		after = slices.DeleteFunc(before, func(was Suspect) bool { return was.is(s.Service, s.Client) })
		return append(after, added), changes, nil
	})
}

// ClearSuspect answers DELETE of api.PathSuspects.
func (k *Sweeper) ClearSuspect(r *http.Request, dryRun bool) (any, error) {
	return k.changeSuspects(r, dryRun, func(_ *model.Service, s api.Suspect, before []Suspect) (after []Suspect, changes string, err error) {
		after = slices.DeleteFunc(slices.Clone(before), func(was Suspect) bool { return was.is(s.Service, s.Client) })
		if len(after) == len(before) {
			return nil, "", api.BadRequest("%s is no suspect of service %s: see `ballast ctl suspect list`", s.Client, s.Service)
		}
		return after, fmt.Sprintf("service %s: suspect %s cleared", s.Service, s.Client), nil
	})
}

// suspectsChange makes another list of one.
type suspectsChange func(service *model.Service, s api.Suspect, before []Suspect) (after []Suspect, done string, err error)

// changeSuspects carries out a change of a copy of the list, for connections that come and for those that are there. A dry run
// only tells.
func (k *Sweeper) changeSuspects(r *http.Request, dryRun bool, change suspectsChange) (any, error) {
	var s api.Suspect
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		return nil, api.BadRequest("read a suspect: %s", err)
	}
	if !s.Client.IsValid() {
		return nil, api.BadRequest("name a client, or a network of them")
	}
	var err error
	if s.Client, err = api.Network(s.Client); err != nil {
		return nil, api.BadRequest("%s", err)
	}
	var done string
	k.hold(func(h held) { done, err = h.replaceSuspects(s, dryRun, change) })
	if err != nil {
		return nil, err
	}
	if dryRun {
		return api.Changed{Changes: []string{done}}, nil
	}
	k.Save()
	k.Log.Info("changed", "by", api.CallerName(r.Context()), "what", done)
	k.sweepNow(s.Service)
	return api.Changed{Changes: []string{done}}, nil
}

func (h held) replaceSuspects(s api.Suspect, dryRun bool, change suspectsChange) (done string, err error) {
	if _, err := h.tableOf(s.Service); err != nil {
		return "", err
	}
	before := h.suspects.list
	after, done, err := change(h.now.Running.Service(s.Service), s, slices.Clone(before))
	if err != nil || dryRun {
		return done, err
	}
	h.suspects.replace(after)
	if err := h.setSuspects(); err != nil {
		h.suspects.replace(before)
		return "", errors.Join(err, h.setSuspects())
	}
	return done, nil
}
