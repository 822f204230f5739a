// Package rendezvous elects by the highest hash of name and subject.
package rendezvous

import (
	"cmp"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Elect returns the names that a subject falls to, at most most of them, best first
// (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"). Everybody who knows the same names elects the
// same, and when a name comes or goes only what falls to it moves.
func Elect(subject string, names []string, most int) []string {
	if most == 1 && len(names) > 0 {
		return []string{slices.MaxFunc(names, func(a, b string) int { return byScore(subject, a, b) })}
	}
	elected := slices.Clone(names)
	slices.SortFunc(elected, func(a, b string) int { return -byScore(subject, a, b) })
	return elected[:min(most, len(elected))]
}

func byScore(subject, a, b string) int {
	return cmp.Or(cmp.Compare(score(subject, a), score(subject, b)), cmp.Compare(a, b))
}

func score(subject, name string) uint64 {
	message := make([]byte, 0, 128)
	return siphash.Sum13(0, 0, append(append(append(message, name...), 0), subject...))
}
