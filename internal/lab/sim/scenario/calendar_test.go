package scenario

import (
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// allTimes lays out all events at all of their times, and puts them in order.
func allTimes(s *Scenario) (all []happening) {
	for i, event := range s.Events {
		for time := range event.times() {
			all = append(all, happening{s.WarmUp + event.At + time*event.Every, i})
		}
	}
	slices.SortStableFunc(all, func(a, b happening) int { return int(a.at - b.at) })
	return all
}

func TestEventsHappenInTheOrderOfTheirTimesAndThenOfTheFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, least, most int64) int64 { return rapid.Int64Range(least, most).Draw(t, name) }
		s := &Scenario{WarmUp: number("warm-up", 0, 5)}
		for range number("events", 0, 8) {
			e := Event{At: number("at", 0, 20)}
			if rapid.Bool().Draw(t, "repeats") {
				e.Every, e.Until = number("every", 1, 9), e.At+number("for", 0, 30)
			}
			s.Events = append(s.Events, e)
		}
		c, left := newCalendar(s), allTimes(s)
		for until := int64(0); until < 80; until += number("step", 1, 20) {
			for len(left) > 0 && left[0].at <= until {
				if h, ok := c.popUntil(s, until); !ok || h != left[0] {
					t.Fatalf("until %d: %v (%v), want %v", until, h, ok, left[0])
				}
				left = left[1:]
			}
			if h, ok := c.popUntil(s, until); ok {
				t.Fatalf("until %d: %v is one too many", until, h)
			}
		}
	})
}

// In a month an event may happen at every millisecond: as a list that would take 40 GB. Here it is an hour, and the world takes some memory, too.
func TestAnEventTakesTheSameMemoryHoweverOftenItHappens(t *testing.T) {
	s := parse(t, `length: 1h
servers: [{count: 1}]
traffic: {rate: 1, lifetimes: {shape: constant, mean: 1s}}
policies: [{dispatch: rr}]
events: [{at: 0s, every: 1ms, rate: 1}]
`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := newPlay(s, s.Policies[0], &sim.Run{Seed: 1})
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 16<<20 || len(p.calendar.next) != 1 {
		t.Errorf("%d bytes are taken for an event that happens %d times", taken, s.Events[0].times())
	}
}
