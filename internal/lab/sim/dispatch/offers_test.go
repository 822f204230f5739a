package dispatch

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestTheFirstCandidateThatHasRoomAccepts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 61
		count, threshold := rapid.IntRange(2, 4).Draw(t, "candidates"), uint32(rapid.IntRange(1, 5).Draw(t, "threshold"))
		var shares []model.Share
		loads := make([]int32, rapid.IntRange(1, 9).Draw(t, "servers"))
		for server := range loads {
			shares = append(shares, model.Share{ID: uint16(server + 1), Weight: 1})
			loads[server] = int32(rapid.IntRange(0, 6).Draw(t, "load"))
		}
		numbers := random.Keyed(1, "numbers")
		offers := NewOffers(count, threshold, slots, numbers)
		offers.Weigh(shares)
		cells := candidates.Columns(slots, count, shares)
		for flow := range uint64(100) {
			var want uint16
			for _, id := range cells[int(random.Below(numbers.At(flow), slots))*count:][:count] {
				if id == 0 {
					break
				}
				if want = id; uint32(loads[id-1]) < threshold {
					break
				}
			}
			if have := offers.Choose(flow, loads); have != uint32(want)-1 {
				t.Fatalf("flow %d has server %d, want %d", flow, have, want-1)
			}
		}
	})
}

// With a dynamic limit servers accept half of what they are offered first, whatever they have open (6LB IV-C).
func TestADynamicLimitFollowsTheLoad(t *testing.T) {
	offers := NewOffers(2, 0, 61, random.Keyed(1, "numbers"))
	numbers := random.Keyed(2, "loads")
	accepted := 0
	const settles, asked = 5000, 5000
	for i := range uint64(settles + asked) {
		if offers.Accepts(3, int32(100+random.Below(numbers.At(i), 40))) && i >= settles {
			accepted++
		}
	}
	if accepted < asked*35/100 || accepted > asked*65/100 {
		t.Errorf("%d of %d offers were accepted", accepted, asked)
	}
}
