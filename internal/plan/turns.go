package plan

import (
	"cmp"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/choice"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

// What dispatch draws from is a range of words (bpf/lb/state/rounds.h). A word is a turn, id | price << 16 | counter << 32 | group << 60, or, first
// in the ranges of awfd and lcf, one for each class. Images have turns without counters.
const (
	counterShift = 32
	groupShift   = 60
)

func turn(id, price uint16) uint64 { return uint64(id) | uint64(price)<<16 }

func turnID(word uint64) uint16 { return uint16(word) }

// ReadTurn returns what a word of least says of a server, which stands for its id, and where its load is.
func ReadTurn(word uint64) (t choice.Turn, counter uint32) {
	t = choice.Turn{Server: uint32(turnID(word)), Price: uint16(word >> 16), Group: uint8(word >> groupShift)}
	return t, uint32(word >> counterShift & (1<<(groupShift-counterShift) - 1))
}

// takers returns who may be given new connections, in the order of the ids: active, not down, able to take part, with a way there.
func takers(want *Want, s *Service) []model.Share {
	reachable := map[uint16]bool{}
	for _, server := range s.Servers {
		reachable[server.ID] = want.Paths[server.Address].Known()
	}
	shares := slices.DeleteFunc(s.takingNew(), func(share model.Share) bool { return s.NoCookie[share.ID] || !reachable[share.ID] })
	slices.SortFunc(shares, func(a, b model.Share) int { return cmp.Compare(a.ID, b.ID) })
	return shares
}

// layTurns fills img.rounds, and says in the row how they are to be read.
func (img *image) layTurns(s *Service, before *image) {
	switch s.Dispatch {
	case model.DispatchLeast:
		img.row.IDTurns = uint16(len(idTurns(img.takers)))
	case model.DispatchAWFD, model.DispatchLCF:
		img.row.Members, img.row.Classes = uint16(len(img.takers)), classesOf(&s.Service)
		img.rounds = newClasses(img.takers, img.row.Classes)
		if img.continues(before) {
			img.rounds = before.rounds
		}
	}
	img.rounds = img.turns(s.Weights, s.Starting)
}

// turns are the words of img.rounds by other soft weights, and with other servers that start: of as many servers as there are.
func (img *image) turns(weights map[uint16]uint16, starting slowstart.Parts) (words []uint64) {
	switch model.Dispatch(img.row.Dispatch) {
	case model.DispatchRR:
		return sequence(rounds.Weighted(starting.Shares(alike(img.takers))))
	case model.DispatchWRR:
		return sequence(rounds.Weighted(starting.Shares(img.takers)))
	case model.DispatchAWRR:
		return sequence(rounds.Weighted(starting.Shares(softTurns(img.takers, weights))))
	case model.DispatchP2C:
		shares := starting.Shares(img.takers)
		return priced(rounds.Weighted(shares), shares)
	case model.DispatchLeast:
		shares := starting.Shares(img.takers)
		ids := idTurns(shares)
		for _, id := range rounds.Weighted(shares) {
			words = append(words, ids[id])
		}
		return append(words, ids...)
	case model.DispatchAWFD, model.DispatchLCF:
		return reclass(img.rounds, img.row.Classes, img.row.Members, starting.Classes(img.takers, weights))
	}
	return nil
}

// alike are shares of servers that all have the same weight.
func alike(shares []model.Share) []model.Share {
	equal := slices.Clone(shares)
	for i := range equal {
		equal[i].Weight = 1
	}
	return equal
}

// sequence is a round whose turns only name servers.
func sequence(ids []uint16) []uint64 {
	words := make([]uint64, len(ids))
	for i, id := range ids {
		words[i] = turn(id, 0)
	}
	return words
}

// idTurns are the turns of shares in the order of their ids, each at its id, and 0 between. Up to choice.Groups servers have groups of their own.
func idTurns(shares []model.Share) (words []uint64) {
	prices := choice.Prices(shares)
	for i, share := range shares {
		words = append(words, make([]uint64, int(share.ID)-len(words))...)
		words = append(words, turn(share.ID, prices[share.ID])|uint64(i%choice.Groups)<<groupShift)
	}
	return words
}

// priced is a round whose turns also tell what one connection costs.
func priced(ids []uint16, shares []model.Share) []uint64 {
	prices := choice.Prices(shares)
	words := make([]uint64, len(ids))
	for i, id := range ids {
		words[i] = turn(id, prices[id])
	}
	return words
}

// softTurns are the takers with their soft weights; a server that those do not name yet counts as averagely loaded. Where no weight
// is known, or all are 0, it is the configured ones that count.
func softTurns(takers []model.Share, weights map[uint16]uint16) []model.Share {
	if len(weights) == 0 {
		return takers
	}
	soft, sum := slices.Clone(takers), 0
	for i := range soft {
		weight, known := weights[soft[i].ID]
		if !known {
			weight = awrr.Balanced
		}
		soft[i].Weight = weight
		sum += int(weight)
	}
	if sum == 0 {
		return takers
	}
	return soft
}

// withCounters returns the words as packets read them.
func withCounters(words []uint64, classes uint8, counters map[uint16]uint32) []uint64 {
	full := slices.Clone(words)
	for i := int(classes); i < len(full); i++ {
		full[i] |= uint64(counters[turnID(full[i])]) << counterShift
	}
	return full
}

// withoutCounters undoes withCounters, in place.
func withoutCounters(words []uint64, classes uint8) []uint64 {
	for i := int(classes); i < len(words); i++ {
		words[i] &^= 1<<groupShift - 1<<counterShift
	}
	return words
}
