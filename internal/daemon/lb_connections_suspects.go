package daemon

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
	datapath "github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
)

// suspect is a client, or a network of them, whose packets to a service visit its scrubber first. It is saved as it is.
type suspect struct {
	Service string       `json:"service"`
	Client  netip.Prefix `json:"client"`
	Until   time.Time    `json:"until,omitzero"` // zero: until it is cleared
}

func (s *suspect) is(service string, client netip.Prefix) bool {
	return s.Service == service && s.Client == client
}

// suspects are those of all services. LB.mu guards them.
type suspects struct {
	list    []suspect // replaced, never changed
	by      map[string]*serviceSuspects
	changes uint64

	seen listed             // the list of tables when the data path was told last
	told []datapath.Suspect // what it was told
	once bool               // it was told
}

// serviceSuspects are those of one service.
type serviceSuspects struct {
	networks []netip.Prefix
	contain  func(netip.Addr) bool
}

func (s *suspects) replace(list []suspect) {
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

// expireSuspects drops suspects whose time is over or whose service keeps no table any more, and tells the data path who is left when
// it may not know. Callers hold mu.
func (lb *LB) expireSuspects(now time.Time) {
	c := &lb.connections
	over := func(s suspect) bool {
		service := lb.node.Running.Service(s.Service)
		return !s.Until.IsZero() && !now.Before(s.Until) || service == nil || service.Affinity != model.AffinityTable
	}
	if slices.ContainsFunc(c.suspects.list, over) {
		for _, s := range c.suspects.list {
			if over(s) {
				lb.log.Info("no suspect any more", "service", s.Service, "client", s.Client)
			}
		}
		c.suspects.replace(slices.DeleteFunc(slices.Clone(c.suspects.list), over))
		lb.keepState()
	}
	if err := lb.tellSuspects(now); err != nil {
		lb.log.Error("suspects' new connections do not visit scrubbers", "error", err)
	}
}

// tellSuspects tells the data path, which knows services by number, of suspects. Callers hold mu.
func (lb *LB) tellSuspects(now time.Time) error {
	c := &lb.connections
	tables, s := lb.tablesNow(now), &c.suspects
	if s.seen == c.listed {
		return nil
	}
	var all []datapath.Suspect
	for _, t := range tables {
		if by := s.by[t.service]; by != nil {
			for _, network := range by.networks {
				all = append(all, datapath.Suspect{Service: t.number, Client: network})
			}
		}
	}
	if !s.once || !slices.Equal(all, s.told) {
		s.once = false
		if err := lb.path.SetSuspects(all); err != nil {
			return err
		}
	}
	s.seen, s.told, s.once = c.listed, all, true
	return nil
}

// suspectsAsked answers GET of api.PathSuspects.
func (lb *LB) suspectsAsked(*http.Request) (any, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	out := []api.Suspect{}
	for _, s := range lb.connections.suspects.list {
		out = append(out, api.Suspect{Service: s.Service, Client: s.Client, Until: s.Until})
	}
	return out, nil
}

// suspectSet answers POST of api.PathSuspects.
func (lb *LB) suspectSet(r *http.Request) (any, error) {
	return lb.changeSuspects(r, func(s api.Suspect, before []suspect) (after []suspect, changes string, err error) {
		service := lb.node.Running.Service(s.Service)
		if service.Table.Scrubber == "" {
			return nil, "", api.BadRequest("service %s has no scrubber: name one of its servers as its table's scrubber, with weight 0", s.Service)
		}
		if s.Client.Addr().Is6() != service.VIP.Is6() {
			return nil, "", api.BadRequest("the clients of service %s come by the family of its VIP %s, %s is %s", s.Service, service.VIP, s.Client, family(s.Client))
		}
		added := suspect{Service: s.Service, Client: s.Client}
		changes = fmt.Sprintf("service %s: suspect %s visits scrubber %s", s.Service, s.Client, service.Table.Scrubber)
		if err := s.For.Check(); err != nil {
			return nil, "", api.BadRequest("a suspect for %s", err)
		}
		if s.For > 0 {
			added.Until = time.Now().Add(s.For.Duration()).UTC().Truncate(time.Second)
			changes += " until " + added.Until.Format(time.RFC3339)
		}
		after = slices.DeleteFunc(before, func(was suspect) bool { return was.is(s.Service, s.Client) })
		return append(after, added), changes, nil
	})
}

// suspectCleared answers DELETE of api.PathSuspects.
func (lb *LB) suspectCleared(r *http.Request) (any, error) {
	return lb.changeSuspects(r, func(s api.Suspect, before []suspect) (after []suspect, changes string, err error) {
		after = slices.DeleteFunc(slices.Clone(before), func(was suspect) bool { return was.is(s.Service, s.Client) })
		if len(after) == len(before) {
			return nil, "", api.BadRequest("%s is no suspect of service %s: see `ballast ctl connections suspects`", s.Client, s.Service)
		}
		return after, fmt.Sprintf("service %s: suspect %s cleared", s.Service, s.Client), nil
	})
}

// changeSuspects carries out a change of a copy of the list, for connections that come and for those that are there.
func (lb *LB) changeSuspects(r *http.Request, change func(s api.Suspect, before []suspect) ([]suspect, string, error)) (any, error) {
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
	done, err := lb.replaceSuspects(api.CallerName(r.Context()), s, change)
	if err != nil {
		return nil, err
	}
	lb.sweepNow(s.Service)
	return api.Changed{Changes: []string{done}}, nil
}

func (lb *LB) replaceSuspects(by string, s api.Suspect, change func(s api.Suspect, before []suspect) ([]suspect, string, error)) (done string, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if _, err := lb.tableOf(s.Service); err != nil {
		return "", err
	}
	list := &lb.connections.suspects
	before := list.list
	after, done, err := change(s, slices.Clone(before))
	if err != nil {
		return "", err
	}
	list.replace(after)
	if err := lb.tellSuspects(time.Now()); err != nil {
		list.replace(before)
		return "", errors.Join(err, lb.tellSuspects(time.Now()))
	}
	lb.keepState()
	lb.log.Info("changed", "by", by, "what", done)
	return done, nil
}

// sweepNow sweeps a service's table at once: what its entries say of suspects is what the list says.
func (lb *LB) sweepNow(service string) {
	for block := uint32(0); lb.sweepFrom(service, block); block += lookChunk {
	}
}

// sweepFrom sweeps a part of a service's table. It reports whether there was one.
func (lb *LB) sweepFrom(service string, block uint32) bool {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	t, err := lb.tableOf(service)
	if err != nil || lb.applyIncomplete || block >= t.table.Blocks {
		return false
	}
	lb.sweepBlocks(t, block, lookChunk)
	return true
}
