package e2e

import "testing"

// Promise: Services change their affinity while connections live: pairs that docs/run/configure.md says keep all break none; others are refused with their
// number, and by force they break some.
func TestServicesChangeTheirAffinityWithoutABrokenConnection(t *testing.T) {
	result := run(t, "affinity")
	logMeasured(t, result)
	if result.Attempted == 0 || result.Broken != 0 {
		t.Errorf("%d of %d broken", result.Broken, result.Attempted)
	}
}

// Promise: `ballast leave agent --keep` drains an agent's servers and takes it off, and it comes back, without a broken connection; `--detach` asks nothing then.
func TestAnAgentIsTakenOffAndComesBackWithoutABrokenConnection(t *testing.T) {
	result := run(t, "leave")
	logMeasured(t, result)
	if result.Attempted == 0 || result.Broken != 0 {
		t.Errorf("%d of %d broken", result.Broken, result.Attempted)
	}
}
