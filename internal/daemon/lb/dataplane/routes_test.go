package dataplane

import "testing"

// Questions to the kernel are counted, not time: they are the same on each machine.
func TestRoutesAreAskedForOnceUntilTheyChange(t *testing.T) {
	tables, _ := byReports(t)
	asked := func(after string, want int) {
		t.Helper()
		if tables.routes.Asked != want {
			t.Errorf("%s: %d questions about 2 servers, want %d", after, tables.routes.Asked, want)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	asked("the first state", 2)
	do(tables.Reconcile(tables.Now().State))
	do(tables.RefreshNeighbours())
	asked("another state, and news of neighbours", 2)
	before := tables.await(tables.Now().Addresses())
	if before.Asked != 0 {
		t.Errorf("servers that are known were asked for again: %d", before.Asked)
	}
	do(tables.Refresh())
	asked("news of routes", 2)
	before.Asked = 100 // of before the news
	tables.take(before)
	asked("what was found before the news", 2)
}
