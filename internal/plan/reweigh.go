package plan

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

// Reweigh returns the changes that give a service new soft weights and other parts of servers that start, and takes them as done. Nothing but
// its dispatch changes. awfd and lcf change in place: for x servers of another class at most m + 2x words. Others get a new round, with a grace
// period only when no room is left. Weights of servers that may not get new connections are ignored; so is a service that is not published or
// whose policy is a table. On an error (no room) nothing has changed.
//
// The next Update takes its weights from Service.Weights, and who starts from Service.Starting: its caller remembers them.
func (t *Tables) Reweigh(service string, weights map[uint16]uint16, starting slowstart.Parts) ([]Change, error) {
	p := t.named[service]
	if p == nil || model.Dispatch(p.image.row.Dispatch).Placed() {
		return nil, nil
	}
	next := p.image.turns(weights, starting)
	if !byClasses(p.image.row.Dispatch) {
		return t.newRound(p, next)
	}
	changes := p.inPlace(next)
	p.image.rounds = next
	return changes, nil
}

// newRound publishes another round of a service.
func (t *Tables) newRound(p *published, words []uint64) (changes []Change, err error) {
	if slices.Equal(words, p.image.rounds) {
		return nil, nil
	}
	rounds, rows, to, places, err := t.placesFor(words, 1+len(p.others))
	if err != nil {
		released := t.clone()
		released.release()
		if rounds, rows, to, places, err = released.placesFor(words, 1+len(p.others)); err != nil {
			return nil, err
		}
		t.release()
		changes = append(changes, Grace{})
	}
	t.rounds, t.serviceRows = rounds, rows
	t.rounds.give(p.rounds)
	p.rounds, p.image.rounds = to, words
	changes = append(changes, WriteRounds{to.base, withCounters(words, 0, p.counters)})
	point := func(content ServiceRow, number, before, row uint32) {
		t.serviceRows.give(span{before, 1})
		changes = append(changes, WriteService{row, p.placed(content, number, row)}, PointService{number, row})
	}
	point(p.image.row, p.number, p.row, places[0])
	p.row = places[0]
	for i, vip := range sortedKeys(p.others, netip.Addr.Compare) {
		other := p.others[vip]
		point(p.image.others[vip], other.number, other.row, places[1+i])
		p.others[vip] = doorway{other.number, places[1+i]}
	}
	return changes, nil
}

// placesFor takes a range for turns and so many rows of services, from copies of the spaces, which are returned.
func (t *Tables) placesFor(words []uint64, count int) (rounds, rows space, to span, places []uint32, err error) {
	rounds, rows = t.rounds.clone(), t.serviceRows.clone()
	if to, err = rounds.take(uint32(len(words))); err != nil {
		return rounds, rows, to, nil, err
	}
	for range count {
		row, err := rows.take(1)
		if err != nil {
			return rounds, rows, to, nil, err
		}
		places = append(places, row.base)
	}
	return rounds, rows, to, places, nil
}

// Weights returns the soft weights by which published services choose, by name, to go on with those of an earlier process. Services
// that have none are left out.
func (t *Tables) Weights(services []model.Service) map[string]map[uint16]uint16 {
	find, all := t.finder(), map[string]map[uint16]uint16{}
	for i := range services {
		p := find(&Service{Service: services[i]})
		if p == nil || p.image.row.Dispatch != uint8(services[i].Dispatch) {
			continue
		}
		if weights := p.image.weights(); len(weights) > 0 {
			all[services[i].Name] = weights
		}
	}
	return all
}

// AnswersSYNs are the names of the published services whose SYNs load balancers answer by syn_proxy now, to go on with what an earlier process has found.
func (t *Tables) AnswersSYNs(services []model.Service) map[string]bool {
	find, all := t.finder(), map[string]bool{}
	for i := range services {
		if p := find(&Service{Service: services[i]}); p != nil && p.image.row.SYNProxy != 0 {
			all[services[i].Name] = true
		}
	}
	return all
}

func (img *image) weights() map[uint16]uint16 {
	weights, classes, members := map[uint16]uint16{}, int(img.row.Classes), int(img.row.Members)
	switch model.Dispatch(img.row.Dispatch) {
	case model.DispatchAWRR:
		for _, word := range img.rounds {
			weights[turnID(word)]++
		}
	case model.DispatchAWFD, model.DispatchLCF:
		for i := range classes {
			class := classes - i
			for _, word := range img.rounds[classes+members*class:][:img.rounds[i]>>counterShift] {
				weights[turnID(word)] = uint16(class)
			}
		}
	}
	return weights
}
