package config

import (
	"github.com/ballast-lb/ballast/internal/algo/change"
	"github.com/ballast-lb/ballast/internal/model"
)

// Diff is change.Diff.
func Diff(a, b model.Fleet) []string { return change.Diff(a, b) }

// Merge is change.Merge.
func Merge(base, edited, running model.Fleet) (merged model.Fleet, changes []string) {
	return change.Merge(base, edited, running)
}
