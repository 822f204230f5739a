package beyond

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/scenario"
)

// movingLoad is a scenario: other work comes to a tenth of the servers, and every two seconds to others.
const movingLoad = `
title: response times where other work moves from server to server, %d servers
length: %s
warm_up: 5s
servers: [{count: %d}]
table_slots: 65521
traffic: {load: 0.5, work: {shape: exponential, mean: 10ms}}
policies:
  - {dispatch: rr}
  - {dispatch: p2c}
  - {dispatch: awfd, interval: 250ms}
  - {name: choices-dynamic, dispatch: choices}
  - {name: choices-static, dispatch: choices, threshold: 2}
events:
  - {at: 0s, every: 2s, slow: %d, speed: 0.2}
expect:
  - {policy: rr, measure: p99, at_least: 4000}
  - {policy: p2c, measure: p99, at_most: 200}
  - {policy: awfd, measure: p99, at_most: 800}
  - {policy: choices-static, measure: p99, at_most: 350}
  - {policy: choices-dynamic, measure: p99, at_most: 1600}
`

// choicesExperiment compares servers that decide by their load of the moment (SHELL) with policies that count, and with one that is told.
func choicesExperiment(servers int, length string) sim.Experiment {
	name := fmt.Sprintf("beyond-choices-%d", servers)
	s, err := scenario.Parse(name, fmt.Appendf(nil, movingLoad, servers, length, servers, servers/10), nil)
	if err != nil {
		panic(err)
	}
	e := s.Experiment(name)
	e.Source, e.Extra = source, true
	return e
}
