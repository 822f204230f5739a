package estimate

import (
	"testing"

	"pgregory.net/rapid"
)

// byReports are servers whose load in an interval is the connections that they got in the one before, for their speed. least gives them
// connections by loads of Reports, and CONNECTION_LOAD for each as packets add it.
type byReports struct {
	reports Reports
	servers []Reported
	speed   []float64
	got     []int
}

func newByReports(speed ...float64) *byReports {
	f := &byReports{servers: make([]Reported, len(speed)), speed: speed, got: make([]int, len(speed))}
	for i := range f.servers {
		f.servers[i] = Reported{Weight: 1, TakesNew: true, Known: true}
	}
	return f
}

func (f *byReports) interval(connections int) {
	begun := 0
	for i := range f.servers {
		if f.servers[i].Load >= 0 { // else it lies
			f.servers[i].Load = float64(f.got[i]) / f.speed[i]
		}
		begun += f.got[i]
	}
	loads := f.reports.Loads(f.servers, uint64(begun), 1, 1, false)
	f.got = make([]int, len(f.servers))
	for range connections {
		least := 0
		for i := range loads {
			if loads[i] < loads[least] {
				least = i
			}
		}
		loads[least] += Unit
		f.got[least]++
	}
}

// Between two reports, least by reports alone would give one server everything.
func TestTheServerWithTheLowestReportDoesNotGetEveryConnectionOfAnInterval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, connections := rapid.IntRange(3, 16).Draw(t, "servers"), rapid.IntRange(50, 2000).Draw(t, "connections")
		speed := make([]float64, n)
		for i := range speed {
			speed[i] = rapid.Float64Range(0.25, 1).Draw(t, "speed")
		}
		f := newByReports(speed...)
		for range 40 {
			f.interval(connections)
		}
		lied := rapid.IntRange(0, n-1).Draw(t, "reports nothing")
		f.speed[lied] = 1e9
		for round := range 20 {
			f.interval(connections)
			if most := 2.5*float64(connections)/float64(n) + 3; float64(f.got[lied]) > most {
				t.Fatalf("round %d: it got %d of %d connections, more than %.0f", round, f.got[lied], connections, most)
			}
		}
	})
}

func TestSlowServersGetFewerConnections(t *testing.T) {
	f := newByReports(1, 1, 0.5, 0.5)
	for range 100 {
		f.interval(400)
	}
	for range 10 {
		if f.interval(400); f.got[2]+f.got[3] > 185 || f.got[2]+f.got[3] < 130 {
			t.Errorf("the two of half the speed got %v", f.got)
		}
	}
}

func TestLoadsAreMeasuredInConnections(t *testing.T) {
	known := func(weight uint16, load float64) Reported {
		return Reported{Weight: weight, TakesNew: true, Known: true, Load: load}
	}
	for what, c := range map[string]struct {
		servers  []Reported
		share    float64
		requests bool
		want     []int32
	}{
		// Of 30 connections of an interval each has brought 0.05 of the CPU.
		"cpu":              {[]Reported{known(1, 0.5), known(1, 0.6), known(1, 0.4)}, 1, false, []int32{10 * Unit, 12 * Unit, 8 * Unit}},
		"heavy":            {[]Reported{known(2, 0.5), known(1, 0.5)}, 1, false, []int32{20 * Unit, 10 * Unit}},
		"requests":         {[]Reported{known(1, 45), known(1, 40)}, 1, true, []int32{45 * Unit, 40 * Unit}},
		"half of requests": {[]Reported{known(1, 45), known(1, 40)}, 0.5, true, []int32{45 * Unit / 2, 20 * Unit}},
		"unknown":          {[]Reported{known(1, 0.5), known(1, 0.4), {Weight: 2, TakesNew: true}}, 1, false, []int32{50 * Unit / 3, 40 * Unit / 3, 30 * Unit}},
		"starts":           {[]Reported{known(10, 0.5), {Weight: 10, TakesNew: true}, {Weight: 1, TakesNew: true, Known: true, Load: 0.05, Size: 10}}, 1, false, []int32{300 * Unit / 11, 300 * Unit / 11, 30 * Unit / 11}},
		"idle":             {[]Reported{known(1, 0), known(1, 0)}, 1, false, []int32{0, 0}},
		"none known":       {[]Reported{{Weight: 1, TakesNew: true}}, 1, false, []int32{0}},
		// It is at 15 and not at 0: its share of an interval, and one, below the others' 31.
		"far below": {[]Reported{known(1, 1000), known(1, 0)}, 1, true, []int32{1000 * Unit, 984 * Unit}},
	} {
		t.Run(what, func(t *testing.T) {
			r := Reports{rate: 30}
			have := r.Loads(c.servers, 0, 0, c.share, c.requests)
			for i := range have {
				if off := have[i] - c.want[i]; off > 1 || off < -1 {
					t.Errorf("have %v, want %v", have, c.want)
				}
			}
		})
	}
}
