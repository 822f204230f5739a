package tlsclient

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestUnevennessIsThatOfConnectionsAtATime(t *testing.T) {
	const tick = evenInterval
	for _, one := range []struct {
		name  string
		spans []span
		want  float64
	}{
		{"none", nil, 0},
		{"as many at each", []span{{0, 4*tick - 1, "a"}, {0, 4*tick - 1, "b"}}, 0},
		{"0 and 1, then 2 and 0 three times", []span{{0, 1, "b"}, {1, 4*tick - 1, "a"}, {1, 4*tick - 1, "a"}}, math.Sqrt(13.0/8-49.0/64) / (7.0 / 8)},
		{"between two looks", []span{{1, 2, "a"}}, 0},
	} {
		if got := unevenness(one.spans); math.Abs(got-one.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", one.name, got, one.want)
		}
	}
}

func TestSessionsHaveAsManyRequestsAsAreDrawn(t *testing.T) {
	c := &client{group: &group{Group: &Group{Resumes: 9, State: &State{UpTo: 3}}}, random: rand.New(rand.NewPCG(1, 1))}
	seen := map[int]int{}
	for range 300 {
		seen[newDialog(c).resumes]++
	}
	if len(seen) != 3 || seen[0] < 50 || seen[1] < 50 || seen[2] < 50 {
		t.Errorf("%v", seen)
	}
	c.State.UpTo = 0
	if got := newDialog(c).resumes; got != 9 {
		t.Errorf("%d", got)
	}
}
