package speed

import "testing"

func TestWorldsGoOnAndBreakWhatTheirKindDoes(t *testing.T) {
	const events = 1_000_000
	broken := map[string]int64{}
	for _, world := range Worlds() {
		run := world.Make(20_000)
		run.Continue(events)
		if n := run.Events(); n < events || n > events*11/10 {
			t.Errorf("%s: %d events", world.Name, n)
		}
		broken[world.Name] = run.Broken()
	}
	for name, n := range broken {
		if cookie := name != "hash" && name != "beamer"; cookie && n != 0 {
			t.Errorf("%s broke %d", name, n)
		}
	}
	if !(broken["hash"] > 3*broken["beamer"] && broken["beamer"] > 0) {
		t.Errorf("%v", broken)
	}
}
