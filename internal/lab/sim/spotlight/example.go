package spotlight

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/model"
)

// exampleLeft is what the four instances of Spotlight's figure 3 have left.
var exampleLeft = []awfd.Available{{ID: 1, Capacity: 2}, {ID: 2, Capacity: 1}, {ID: 3}, {ID: 4}}

func example() sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-example", Source: source("section IV, figure 3"), Seeds: 1,
		Title: "probability that two elephants go one to each of the two instances that have room for them",
		Method: "Four instances with 2, 1, 0 and 0 left. By the weights that the production code gives them: exact. By the data path's two stages: counted over 2^14 " +
			"evenly spread numbers.",
		Claims: []sim.Claim{
			{ID: "ecmp", What: "ECMP (m = 0)", Unit: "%", Paper: "12.5 %", Low: 12.5, High: 12.5},
			{ID: "lcf", What: "LCF", Unit: "%", Paper: "0 %: 100 % likely to assign them into the same DIP", Low: 0, High: 0},
			{ID: "awfd", What: "AWFD, m = 2", Unit: "%", Paper: "44.4 %", Low: 44.4, High: 44.5},
			{ID: "awfd-stages", What: "AWFD, m = 2, in two stages", Unit: "%", Paper: "44.4 %", Low: 44.3, High: 44.5},
		},
		Run: func(run *sim.Run) {
			run.Value("ecmp", apart(awfd.Weights(exampleLeft, 0)))
			run.Value("lcf", apart(lcf.Weights(exampleLeft)))
			run.Value("awfd", apart(awfd.Weights(exampleLeft, 2)))
			run.Value("awfd-stages", apart(counted(awfd.Weights(exampleLeft, 2))))
		},
	}
}

// apart is the probability, in percent, that of two flows one goes to the first server and one to the second.
func apart(shares []model.Share) float64 {
	sum := 0
	for _, share := range shares {
		sum += int(share.Weight)
	}
	return 100 * float64(2*int(shares[0].Weight)*int(shares[1].Weight)) / float64(sum*sum)
}

// counted are weights as they come out of choosing: how many of 2^14 numbers lead to each server.
func counted(shares []model.Share) []model.Share {
	const bits = 14
	classes, count := awfd.NewClasses(shares), make([]model.Share, len(shares))
	for i := range uint32(1) << bits {
		count[classes.Choose(i<<(32-bits))-1].Weight++
	}
	return count
}
