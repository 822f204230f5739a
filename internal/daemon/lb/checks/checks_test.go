package checks

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/machine/health"
)

// A direct check says less than it seems to: what it says is marked, whether it succeeds or not.
func TestADirectCheckIsMarkedWhetherItSucceedsOrNot(t *testing.T) {
	var reported []engine.ServerHealth
	c := &Checks{options: Options{Report: func(servers []engine.ServerHealth) { reported = servers }}}
	direct := check.Remarks{Direct: "port 80"}
	c.report([]check.Result{
		{ID: 1, Healthy: true}, {ID: 2, Healthy: true, Remarks: direct}, {ID: 3, Detail: "timed out", Remarks: direct}, {ID: 4, Detail: "timed out"},
	})
	want := []engine.ServerHealth{
		{ID: 1, View: health.View{Healthy: true}}, {ID: 2, View: health.View{Healthy: true, Direct: true, Detail: "direct: port 80"}},
		{ID: 3, View: health.View{Direct: true, Detail: "timed out (checked directly, not through the tunnel)"}}, {ID: 4, View: health.View{Detail: "timed out"}},
	}
	if !slices.Equal(reported, want) {
		t.Errorf("reported %+v, want %+v", reported, want)
	}
}
