package scenario

import "github.com/ballast-lb/ballast/internal/lab/world"

// maxGrown are the bytes by which what a daemon keeps may grow in a flood: what is in use just then varies by a third of that.
const maxGrown = 2 << 20

// Bounded expects that no daemon keeps more after a flood than before.
func Bounded(t *world.Trial, result *Result, name string, flood func()) {
	before := t.Counters.Memory()
	flood()
	after := t.Counters.Memory()
	for daemon, had := range before {
		has := after[daemon]
		result.Measure("grown_"+name+"_"+daemon.String(), has.Own-had.Own)
		result.Expect(had.Own > 0 && has.Own < had.Own+maxGrown, "%s: %s has grown from %.0f to %.0f bytes", name, daemon, had.Own, has.Own)
		result.Expect(had.Maps > 0 && has.Maps == had.Maps, "%s: the maps of %s have grown from %.0f to %.0f bytes", name, daemon, had.Maps, has.Maps)
	}
}
