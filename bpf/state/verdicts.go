// Package state has the comments of the data path's verdicts, for whoever explains a counter.
package state

import _ "embed"

// Verdicts declares every way out of a load balancer's data path, AgentVerdicts those of an agent's programs.
var (
	//go:embed verdict.h
	Verdicts string
	//go:embed agent.h
	AgentVerdicts string
)
