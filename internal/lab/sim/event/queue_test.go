package event

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// dumbQueue is a slice that is searched for what comes first.
type dumbQueue struct{ events []farEvent }

func (q *dumbQueue) push(at int64, payload uint32) {
	q.events = append(q.events, farEvent{at, payload})
}

func (q *dumbQueue) popBefore(limit int64) (at int64, payload uint32, ok bool) {
	best := -1
	for i, event := range q.events {
		if event.at < limit && (best < 0 || event.at < q.events[best].at) {
			best = i
		}
	}
	if best < 0 {
		return 0, 0, false
	}
	event := q.events[best]
	q.events = slices.Delete(q.events, best, best+1)
	return event.at, event.payload, true
}

const never = 1<<63 - 1

// delay draws how far in the future an event is: at once, soon, or at any distance up to days.
func delay(t *rapid.T) int64 {
	return rapid.Int64Range(0, 1<<rapid.SampledFrom([]int{0, 1, 4, 8, 9, 16, 20, 25, 32, 33, 40, 44, 45, 50}).Draw(t, "bits")-1).Draw(t, "delay")
}

func TestEventsComeInTheOrderOfTimeAndThenOfPush(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queue, dumb := New(rapid.SampledFrom([]int64{0, 1, 255, 256, 70_000, 1 << 24, 1 << 40}).Draw(t, "tick")), dumbQueue{}
		now, payload := int64(0), uint32(0)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1:
				at := now + delay(t)
				for range rapid.SampledFrom([]int{1, 1, 2, 40, 300}).Draw(t, "times") {
					queue.Push(at, payload)
					dumb.push(at, payload)
					payload++
				}
			case 2:
				limit := now + delay(t)
				at, have, ok := queue.PopBefore(limit)
				wantAt, want, wantOK := dumb.popBefore(limit)
				if at != wantAt || have != want || ok != wantOK {
					t.Fatalf("before %d: have %d at %d %v, want %d at %d %v", limit, have, at, ok, want, wantAt, wantOK)
				}
				if now = limit; ok {
					now = at
				}
			case 5:
				limit := now + delay(t)
				for ready := queue.Next(limit); len(ready) > 0; ready = queue.Next(limit) {
					for _, e := range ready {
						at, want, ok := dumb.popBefore(limit)
						if !ok || at != queue.At(e) || want != e.Payload() {
							t.Fatalf("next before %d: have %d at %d, want %d at %d %v", limit, e.Payload(), queue.At(e), want, at, ok)
						}
					}
				}
				if at, _, ok := dumb.popBefore(limit); ok {
					t.Fatalf("before %d: nothing, want one at %d", limit, at)
				}
				now = limit
			case 4:
				limit := now + delay(t)
				var have, want []uint32
				queue.Drain(limit, func(events []Event) {
					for _, e := range events {
						have = append(have, e.Payload())
					}
				})
				for {
					_, payload, ok := dumb.popBefore(limit)
					if !ok {
						break
					}
					want = append(want, payload)
				}
				slices.Sort(have)
				slices.Sort(want)
				if now = limit; !slices.Equal(have, want) {
					t.Fatalf("drained before %d: have %d, want %d", limit, have, want)
				}
			case 3:
				at, have, ok := queue.Pop()
				wantAt, want, wantOK := dumb.popBefore(never)
				if at != wantAt || have != want || ok != wantOK {
					t.Fatalf("have %d at %d %v, want %d at %d %v", have, at, ok, want, wantAt, wantOK)
				}
				now = max(now, at)
			}
			seen := 0
			queue.Each(func(events []Event) { seen += len(events) })
			if seen != len(dumb.events) {
				t.Fatalf("%d events to see instead of %d", seen, len(dumb.events))
			}
			if queue.Len() != len(dumb.events) {
				t.Fatalf("%d events instead of %d", queue.Len(), len(dumb.events))
			}
		}
		for len(dumb.events) > 0 {
			at, have, _ := queue.Pop()
			if wantAt, want, _ := dumb.popBefore(never); at != wantAt || have != want {
				t.Fatalf("have %d at %d, want %d at %d", have, at, want, wantAt)
			}
		}
	})
}

func TestManyEventsInOneLeafAreInOrder(t *testing.T) {
	for _, tick := range []int64{256, 1 << 16, 1 << 24} {
		queue := New(tick)
		const events = 10_000
		for i := range uint32(events) {
			queue.Push(int64(i*2654435761)%(tick*3), i)
		}
		before, payloadBefore := int64(-1), uint32(0)
		for range events {
			at, payload, ok := queue.Pop()
			if !ok || at < before || (at == before && payload < payloadBefore) || at != int64(payload*2654435761)%(tick*3) {
				t.Fatalf("tick %d: %d at %d %v after %d at %d", tick, payload, at, ok, payloadBefore, before)
			}
			before, payloadBefore = at, payload
		}
	}
}

func TestAnEventInThePastPanics(t *testing.T) {
	queue := New(1)
	queue.Push(5, 0)
	queue.Pop()
	defer func() {
		if recover() == nil {
			t.Error("it was accepted")
		}
	}()
	queue.Push(4, 0)
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, tick := range []int64{1, 1 << 8, 1 << 16} {
		queue, random := New(tick), uint64(1)
		hold := func() {
			at, payload, _ := queue.Pop()
			random = random*6364136223846793005 + 1442695040888963407
			queue.Push(at+int64(random>>34), payload)
		}
		for i := range uint32(10_000) {
			queue.Push(int64(i), i)
		}
		for range 100_000 {
			hold()
		}
		if allocations := testing.AllocsPerRun(100_000, hold); allocations > 0.01 {
			t.Errorf("tick %d: %g allocations for each event", tick, allocations)
		}
	}
}

func BenchmarkHold(b *testing.B) {
	for _, c := range []struct {
		name   string
		tick   int64
		events uint32
	}{{"1K", 1 << 16, 1000}, {"1M", 1 << 16, 1_000_000}} {
		b.Run(c.name, func(b *testing.B) {
			queue, random := New(c.tick), uint64(1)
			for i := range c.events {
				queue.Push(int64(i), i)
			}
			for b.Loop() {
				at, payload, _ := queue.Pop()
				random = random*6364136223846793005 + 1442695040888963407
				queue.Push(at+int64(random>>28), payload)
			}
		})
	}
}
