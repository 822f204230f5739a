// Package state has the comments of the load balancer's verdicts, for whoever explains a counter.
package state

import _ "embed"

// Verdicts declares every way out of a load balancer's data path.
//
//go:embed verdict.h
var Verdicts string
