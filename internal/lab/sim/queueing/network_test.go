package queueing

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// visit is a job at a station with so many cores: when it comes, what it takes, when it leaves.
type visit struct{ at, work, done int64 }

// shared plays visits, which are in the order of time, at one station.
func shared(cores int, visits []visit) {
	n := newNetwork()
	n.add(cores)
	for i, v := range visits {
		n.alarm(v.at, uint32(i))
	}
	for {
		h, ok := n.next(never)
		if !ok {
			return
		}
		if h.alarm {
			n.enter(0, h.id, visits[h.id].work)
		} else {
			visits[h.id].done = n.now
		}
	}
}

// dumb plays visits with a list of what is left of each.
func dumb(cores int, visits []visit) []float64 {
	done, left, now, next := make([]float64, len(visits)), map[int]float64{}, 0.0, 0
	for next < len(visits) || len(left) > 0 {
		slowness := max(1, float64(len(left))/float64(cores))
		first, soon := -1, math.Inf(1)
		for i := range visits {
			if rest, ok := left[i]; ok && now+rest*slowness < soon {
				first, soon = i, now+rest*slowness
			}
		}
		arrives := next < len(visits) && float64(visits[next].at) <= soon
		if arrives {
			soon = float64(visits[next].at)
		}
		for i := range left {
			left[i] -= (soon - now) / slowness
		}
		now = soon
		if arrives {
			left[next] = float64(visits[next].work)
			next++
		} else {
			done[first] = now
			delete(left, first)
		}
	}
	return done
}

func TestStationsServeAsALiteralPlayOfSharing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.IntRange(1, 4).Draw(t, "cores")
		visits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) visit {
			return visit{at: rapid.Int64Range(0, 100_000).Draw(t, "at"), work: rapid.Int64Range(1, 50_000).Draw(t, "work")}
		}), 1, 30).Draw(t, "visits")
		slices.SortStableFunc(visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })
		shared(cores, visits)
		for i, want := range dumb(cores, visits) {
			if off := math.Abs(float64(visits[i].done) - want); off > float64(1+len(visits)) { // who leaves late is in the way of others
				t.Errorf("%d cores, job %d of %+v: left at %d, want %g", cores, i, visits[i], visits[i].done, want)
			}
		}
	})
}

// poisson makes visits at a station of a given load.
func poisson(seed uint64, n, cores int, load, mean float64, work func() float64) []visit {
	gaps, at, visits := random.New(seed, "gaps"), 0.0, make([]visit, n)
	for i := range visits {
		at += gaps.Exp(mean / (load * float64(cores)))
		visits[i] = visit{at: int64(at), work: int64(work())}
	}
	return visits
}

// mean time in the system of the visits that a condition holds for, without the first tenth.
func meanTime(visits []visit, of func(visit) bool) float64 {
	sum, n := 0.0, 0.0
	for _, v := range visits[len(visits)/10:] {
		if of(v) {
			sum, n = sum+float64(v.done-v.at), n+1
		}
	}
	return sum / n
}

func within(t *testing.T, what string, have, want, part float64) {
	t.Helper()
	if math.Abs(have-want) > part*want {
		t.Errorf("%s: %g, want %g", what, have, want)
	}
}

func everybody(visit) bool { return true }

func TestMeanTimeAtOneCoreIsThatOfTheory(t *testing.T) {
	const mean, n = 1e6, 200_000
	for _, load := range []float64{0.3, 0.6, 0.8} {
		works := random.New(1, "works")
		visits := poisson(2, n, 1, load, mean, func() float64 { return works.Exp(mean) })
		shared(1, visits)
		within(t, "M/M/1-PS", meanTime(visits, everybody), mean/(1-load), 0.05)
	}
}

// The time of a job is in proportion to its work, whatever that of the others is like: Kleinrock, "Queueing Systems", volume 2, 4.4.
func TestTimeAtOneCoreDependsOnAJobsOwnWorkOnly(t *testing.T) {
	const long, short, part, n = 50e6, 3e5, 0.1, 300_000
	for _, load := range []float64{0.4, 0.6} {
		works := random.New(3, "works")
		visits := poisson(4, n, 1, load, part*long+(1-part)*short, func() float64 {
			if works.Float64() < part {
				return long
			}
			return short
		})
		shared(1, visits)
		within(t, "long jobs", meanTime(visits, func(v visit) bool { return v.work == long }), long/(1-load), 0.05)
		within(t, "short jobs", meanTime(visits, func(v visit) bool { return v.work == short }), short/(1-load), 0.05)
	}
}

// With many cores a job waits as long as Erlang's formula C says.
func TestMeanTimeAtManyCoresIsErlangs(t *testing.T) {
	const mean, cores, load, n = 1e6, 8, 0.8, 200_000
	works := random.New(5, "works")
	visits := poisson(6, n, cores, load, mean, func() float64 { return works.Exp(mean) })
	shared(cores, visits)
	offered, term, sum := load*cores, 1.0, 0.0
	for i := range cores {
		sum += term
		term *= offered / float64(i+1)
	}
	waits := term / (1 - load) / (sum + term/(1-load))
	within(t, "M/M/8", meanTime(visits, everybody), mean+waits*mean/(cores*(1-load)), 0.03)
}

func TestBusyTimeIsTheWorkDone(t *testing.T) {
	n := newNetwork()
	n.add(2)
	n.enter(0, 1, 1000)
	n.enter(0, 2, 3000)
	n.enter(0, 3, 500)
	for {
		if _, ok := n.next(10_000); !ok {
			break
		}
	}
	if have := n.busyNS(0); have < 4500 || have > 4503 {
		t.Errorf("busy for %d ns, want 4500", have)
	}
}

func BenchmarkVisit(b *testing.B) {
	works := random.New(1, "works")
	visits := poisson(2, b.N, 1, 0.8, 1e6, func() float64 { return works.Exp(1e6) })
	b.ResetTimer()
	shared(1, visits)
}
