package e2e

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

// Promise: `ballast ctl server drain --wait` ends when the last connection has, and counts them exactly; a
// deadline cuts what is left then and not before; the id of a removed server rests as long as connections may
// carry it.
// Promise: A server that is drained, waited for and removed loses no connection, and its id stays reserved until
// reuse is safe.
func TestDrainedServersKeepTheirConnectionsUntilTheyEndOrTheDeadline(t *testing.T) {
	result := run(t, "drain")
	logMeasured(t, result)
	if cut := int(result.Measurements["connections_cut"]); result.Broken != cut || cut == 0 {
		t.Errorf("%d of %d broken, %d of them by the deadline: %v", result.Broken, result.Attempted, cut, result.BrokenBy)
	}
}

func logMeasured(t *testing.T, result scenario.Result) {
	for name, value := range result.Measurements {
		t.Logf("%s: %.3f", name, value)
	}
}
