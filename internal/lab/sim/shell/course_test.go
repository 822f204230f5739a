package shell

import (
	"reflect"
	"testing"
)

func TestACourseGoesOnAndLongerHistoriesLoseLess(t *testing.T) {
	const size, slots, rows, reconfigurations = 20, 251, 4, 60
	for seed := range uint64(5) {
		course := Play(seed, size, slots, rows, reconfigurations)
		if !reflect.DeepEqual(course, Play(seed, size, slots, rows, reconfigurations)) {
			t.Errorf("seed %d: two courses", seed)
		}
		if len(course.Pools) != reconfigurations+1 || len(course.Percent) != reconfigurations+1 {
			t.Fatalf("seed %d: %d pools, %d results", seed, len(course.Pools), len(course.Percent))
		}
		for n, pool := range course.Pools {
			if len(pool) != size-n%2 {
				t.Errorf("seed %d: %d servers after %d reconfigurations", seed, len(pool), n)
			}
			for row, percent := range course.Percent[n] {
				if n == 0 && percent != 0 || n > 0 && percent < course.Percent[n-1][row] || row > 0 && percent > course.Percent[n][row-1] {
					t.Errorf("seed %d: %v %% of connections reset after %d reconfigurations", seed, course.Percent[n], n)
				}
			}
		}
		if last := course.Percent[reconfigurations]; last[0] <= last[rows-1] || last[rows-1] == 0 {
			t.Errorf("seed %d: %v %% of connections reset at the end", seed, last)
		}
	}
}
