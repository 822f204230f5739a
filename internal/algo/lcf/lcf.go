// Package lcf is least congested first: all new connections go where most capacity is available until the next poll. Spotlight (IV-A)
// measures itself against it.
package lcf

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/model"
)

// Weights returns 1 for the servers with the largest capacity (also where nobody has any) and 0 for the others, in the order of
// available: adaptive weighted flow dispatching with one class (Spotlight IV-B). Capacities are read as awfd.Weights does.
func Weights(available []awfd.Available) []model.Share { return awfd.Weights(available, 1) }
