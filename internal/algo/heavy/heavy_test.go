package heavy

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func TestCountsAreWithinTheirBoundsAndForgetNobodyWhoIsHeavy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 6).Draw(t, "most")
		exact, total := map[string]uint64{}, uint64(0)
		counts := New(most)
		for range rapid.IntRange(0, 80).Draw(t, "packets") {
			key, weight := strconv.Itoa(rapid.IntRange(0, 12).Draw(t, "key")), rapid.Uint64Range(1, 9).Draw(t, "weight")
			exact[key] += weight
			total += weight
			counts.Add(key, weight)
		}
		found := map[string]bool{}
		for i, count := range counts.Top(100) {
			if count.Weight < exact[count.Key] || count.AtLeast() > exact[count.Key] {
				t.Errorf("%+v, exactly %d", count, exact[count.Key])
			}
			if i >= most {
				t.Errorf("more than %d are counted", most)
			}
			found[count.Key] = true
		}
		for key, weight := range exact {
			if weight*uint64(most) > total && !found[key] {
				t.Errorf("%s with %d of %d is forgotten by %d counts", key, weight, total, most)
			}
		}
		if counts.Total() != total {
			t.Errorf("total %d, not %d", counts.Total(), total)
		}
	})
}

func TestWhereAllFitTheTopIsExact(t *testing.T) {
	counts := New(10)
	for _, key := range []string{"b", "a", "b", "c", "b", "a"} {
		counts.Add(key, 2)
	}
	if top := counts.Top(2); len(top) != 2 || top[0] != (Count{"b", 6, 0}) || top[1] != (Count{"a", 4, 0}) {
		t.Errorf("%+v", top)
	}
}
