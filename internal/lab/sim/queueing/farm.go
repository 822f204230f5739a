package queueing

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
)

// farm is a world of equal servers of one core, as the test bed of Cheetah was.
type farm struct {
	servers int
	load    float64                 // mean part of a server's time that is needed
	mean    float64                 // of work, ns
	work    func(flow uint64) int64 // ns
	warmNS  int64                   // before anything counts
	countNS int64                   // how long requests count that arrive
}

// run plays the farm with a policy.
func (f *farm) run(run *sim.Run, p *policy) *World {
	busy := make([]float64, f.servers)
	w := New(Config{
		Seed: run.Seed, Servers: slices.Repeat([]Size{{Cores: 1, Speed: 1}}, f.servers), GapNS: f.mean / (f.load * float64(f.servers)),
		Work: f.work, Chooser: p.chooser, Interval: p.interval, Report: func(w *World) {
			for server := range busy {
				busy[server], _ = w.Tell(server)
			}
			p.weigh(busy)
		},
	})
	for w.Now() < f.warmNS+f.countNS {
		if w.Now() == f.warmNS {
			w.Reset()
		}
		w.RunUntil(w.Now() + second)
		run.StopIfUnwanted()
	}
	w.Finish(never)
	return w
}

// A policy is how a balancer chooses, and what it makes of reports.
type policy struct {
	chooser  flows.Chooser
	interval int64                // between two reports of a server; 0: it does not report
	weigh    func(busy []float64) // what is made of reports
}
