// Package all joins the experiments of all papers, and ours.
package all

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/anolis"
	"github.com/ballast-lb/ballast/internal/lab/sim/beyond"
	"github.com/ballast-lb/ballast/internal/lab/sim/check"
	"github.com/ballast-lb/ballast/internal/lab/sim/cheetah"
	"github.com/ballast-lb/ballast/internal/lab/sim/queueing"
	"github.com/ballast-lb/ballast/internal/lab/sim/shell"
	"github.com/ballast-lb/ballast/internal/lab/sim/spotlight"
)

// families is the order in which experiments are shown; within one, packages say it.
var families = []string{"cheetah-", "shell-", "spotlight-", "yuz-", "anolis-", "beyond-"}

// Experiments returns all experiments in the order in which they are shown.
func Experiments() []sim.Experiment {
	all := slices.Concat(cheetah.Experiments(), queueing.Experiments(), shell.Experiments(), spotlight.Experiments(),
		anolis.Experiments(), check.Experiments(), beyond.Experiments())
	slices.SortStableFunc(all, func(a, b sim.Experiment) int {
		order := cmp.Compare(family(a), family(b))
		if order == 0 && family(a) == 0 { // Cheetah's figures are of two packages
			order = strings.Compare(a.Name, b.Name)
		}
		return order
	})
	return all
}

// family returns the number of an experiment's family; -1 if there is none.
func family(e sim.Experiment) int {
	return slices.IndexFunc(families, func(prefix string) bool { return strings.HasPrefix(e.Name, prefix) })
}
