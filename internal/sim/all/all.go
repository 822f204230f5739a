// Package all joins the experiments of all papers, and ours.
package all

import (
	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/beyond"
	"github.com/ballast-lb/ballast/internal/sim/shell"
	"github.com/ballast-lb/ballast/internal/sim/spotlight"
)

// Experiments returns all experiments in the order in which they are shown.
func Experiments() []sim.Experiment {
	var all []sim.Experiment
	for _, some := range [][]sim.Experiment{shell.Experiments(), spotlight.Experiments(), beyond.Experiments()} {
		all = append(all, some...)
	}
	return all
}
