package dispatch

import (
	"github.com/ballast-lb/ballast/internal/algo/acceptance"
	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Offers is choices (SHELL III): the candidates of a flow's slot accept it or pass it on, by what they have open, and the last one accepts. Make one by
// NewOffers.
type Offers struct {
	count     int // candidates
	threshold uint32
	slots     uint32
	numbers   random.Key
	servers   []uint32 // candidates of every slot
	limits    map[uint32]*acceptance.Dynamic
}

// NewOffers returns the policy with 2 to 4 candidates in a table of slots. Servers accept while they have less open than a threshold; 0: than
// a limit that each moves by itself (6LB IV-C, window and margin as configuration has them). A flow's number draws its slot.
func NewOffers(count int, threshold, slots uint32, numbers random.Key) *Offers {
	return &Offers{count: count, threshold: threshold, slots: slots, numbers: numbers, limits: map[uint32]*acceptance.Dynamic{}}
}

// Choose implements flows.Chooser.
func (o *Offers) Choose(flow uint64, loads []int32) uint32 {
	row := o.servers[int(random.Below(o.numbers.At(flow), o.slots))*o.count:][:o.count]
	for _, server := range row[:o.count-1] {
		if o.Accepts(server, loads[server]) {
			return server
		}
	}
	return row[o.count-1]
}

// Accepts decides for a server that may pass on. A dynamic limit learns from each call.
func (o *Offers) Accepts(server uint32, load int32) bool {
	if o.threshold > 0 {
		return uint32(load) < o.threshold
	}
	limit := o.limits[server]
	if limit == nil {
		limit = &acceptance.Dynamic{Window: model.DefaultWindow, Limit: 1}
		limit.Low, limit.High = acceptance.Bounds(model.DefaultWindow, model.DefaultMargin)
		o.limits[server] = limit
	}
	return limit.Accept(uint32(load))
}

// Weigh implements Policy.
func (o *Offers) Weigh(shares []model.Share) { o.servers = Candidates(o.slots, o.count, shares) }

// Candidates returns those of every slot, one slot after the other. Where there are fewer servers, the last one of them repeats.
func Candidates(slots uint32, count int, shares []model.Share) []uint32 {
	cells := candidates.Columns(slots, count, shares)
	for i, id := range cells {
		if id == 0 && i%count > 0 {
			cells[i] = cells[i-1]
		}
	}
	return Servers(cells)
}
