// Package server has the comments of the verdicts of an agent's programs, for whoever explains a counter.
package server

import _ "embed"

// Verdicts declares every way out of them.
//
//go:embed verdict.h
var Verdicts string
