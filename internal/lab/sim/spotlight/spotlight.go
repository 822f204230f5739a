// Package spotlight has the experiments of Aghdai et al., "Spotlight: Scalable Transport Layer Load Balancing for Data Center Networks":
// the flow-level simulations of section VI-A, and those of the test bed of VI-B that a model of flows can answer.
package spotlight

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Experiments returns them.
func Experiments() []sim.Experiment {
	return []sim.Experiment{example(), figure8(paper), figure9(mawi(mawiSigma), mawi(narrowSigma), paper), figure10(paper), figure12(), figure13(), figure14(), controlTraffic(paperPool)}
}

func source(part string) string { return "Spotlight " + part }

// infinite is a bound that there is not.
var infinite = math.Inf(1)
