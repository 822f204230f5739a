// How far servers have come that start (slow_start): each load balancer decides by itself.
package engine

import (
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

// A Start is how far a server has come.
type Start struct {
	Tenths uint8     // of its weight, 1 to 9; 0: it does not start
	Whole  time.Time // when it has all of it
}

// StartOf is what a load balancer reports: how many tenths, and how long it takes yet. Zero where that makes no sense: a start ends, and is less than
// the whole.
func StartOf(now time.Time, tenths uint32, left time.Duration) Start {
	if tenths >= slowstart.Whole || tenths == 0 || left <= 0 || left > time.Duration(model.MaxSlowStart) {
		return Start{}
	}
	return Start{Tenths: uint8(tenths), Whole: now.Add(left)}
}

// Part is the part of its weight.
func (s Start) Part() float64 { return float64(s.Tenths) / slowstart.Whole }

// starts are those that load balancers report, by server and load balancer. serviceState.mutex guards them.
type starts map[uint16]map[string]Start

func (s *starts) report(lb string, id uint16, start Start) {
	if start.Tenths == 0 {
		delete((*s)[id], lb)
		return
	}
	if *s == nil {
		*s = starts{}
	}
	if (*s)[id] == nil {
		(*s)[id] = map[string]Start{}
	}
	(*s)[id][lb] = start
}

// at is the smallest part at a time, and the last end. Whoever reports no more is past its end some time.
func (s starts) at(now time.Time, id uint16) (least Start) {
	for _, start := range s[id] {
		if !now.Before(start.Whole) {
			continue
		}
		if least.Tenths == 0 || start.Tenths < least.Tenths {
			least.Tenths = start.Tenths
		}
		if start.Whole.After(least.Whole) {
			least.Whole = start.Whole
		}
	}
	return least
}

// keep forgets all servers but these.
func (s starts) keep(ids map[uint16]bool) {
	maps.DeleteFunc(s, func(id uint16, _ map[string]Start) bool { return !ids[id] })
}
