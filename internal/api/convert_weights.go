// Conversion of weights.
package api

import (
	"math"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// WeightsToProto returns an update as nodes are sent it.
func WeightsToProto(service string, u *follow.Update) *ballastv1.Weights {
	w := &ballastv1.Weights{Service: service, Term: u.Term, Version: u.Version, Complete: u.Complete,
		Ids: make([]uint32, len(u.Weights)), Weights: make([]uint32, len(u.Weights))}
	for i, share := range u.Weights {
		w.Ids[i], w.Weights[i] = uint32(share.ID), uint32(share.Weight)
	}
	return w
}

// WeightsFromProto leaves out what no server can have; nil: it makes no sense at all.
func WeightsFromProto(w *ballastv1.Weights) *follow.Update {
	if len(w.Ids) != len(w.Weights) {
		return nil
	}
	u := &follow.Update{Term: w.Term, Version: w.Version, Complete: w.Complete, Weights: make([]model.Share, 0, len(w.Ids))}
	for i, id := range w.Ids {
		if id <= 0xffff && w.Weights[i] <= 0xffff {
			u.Weights = append(u.Weights, model.Share{ID: uint16(id), Weight: uint16(w.Weights[i])})
		}
	}
	return u
}

// CountsToProto returns counts as a load balancer with that share of the connections is sent them.
func CountsToProto(service string, c *follow.Counts, share float64) *ballastv1.OpenConnections {
	open := &ballastv1.OpenConnections{Service: service, Term: c.Term, Version: c.Version, Share: float32(share),
		Ids: make([]uint32, len(c.Servers)), Open: make([]uint32, len(c.Servers))}
	for i, count := range c.Servers {
		open.Ids[i], open.Open[i] = uint32(count.ID), count.Open
	}
	return open
}

// CountsFromProto leaves out what no server can have; nil: it makes no sense at all.
func CountsFromProto(open *ballastv1.OpenConnections) *follow.Counts {
	if len(open.Ids) != len(open.Open) || !(open.Share >= 0 && open.Share <= 1) {
		return nil
	}
	c := &follow.Counts{Term: open.Term, Version: open.Version, Share: float64(open.Share)}
	for i, id := range open.Ids {
		if id <= 0xffff && open.Open[i] <= math.MaxInt32 {
			c.Servers = append(c.Servers, follow.Count{ID: uint16(id), Open: open.Open[i]})
		}
	}
	return c
}

// LoadsToProto returns loads as a load balancer with that share of the connections is sent them.
func LoadsToProto(service string, l *follow.Loads, share float64) *ballastv1.ReportedLoads {
	loads := &ballastv1.ReportedLoads{Service: service, Term: l.Term, Version: l.Version, Share: float32(share), Requests: l.Requests,
		Ids: make([]uint32, len(l.Servers)), Loads: make([]float32, len(l.Servers))}
	for i, server := range l.Servers {
		loads.Ids[i], loads.Loads[i] = uint32(server.ID), float32(server.Load)
	}
	return loads
}

// LoadsFromProto leaves out what no server can have; nil: it makes no sense at all.
func LoadsFromProto(loads *ballastv1.ReportedLoads) *follow.Loads {
	if len(loads.Ids) != len(loads.Loads) || !(loads.Share >= 0 && loads.Share <= 1) {
		return nil
	}
	l := &follow.Loads{Term: loads.Term, Version: loads.Version, Share: float64(loads.Share), Requests: loads.Requests}
	for i, id := range loads.Ids {
		if load := float64(loads.Loads[i]); id <= 0xffff && load >= 0 && load <= math.MaxFloat32 {
			l.Servers = append(l.Servers, follow.Load{ID: uint16(id), Load: load})
		}
	}
	return l
}
