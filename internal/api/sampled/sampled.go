// Package sampled tells of a sample of packets what part of all packets is of whom.
package sampled

import (
	"math"

	"github.com/ballast-lb/ballast/internal/algo/heavy"
	"github.com/ballast-lb/ballast/internal/api"
)

// A Tally counts a sample.
type Tally struct {
	Sampled uint64 `json:"sampled_packets"`
	LeftOut uint64 `json:"left_out_packets"` // of the sample: there were too many in a second
	Packets uint64 `json:"packets"`          // that the sample and what was left out of it stand for
}

// Add takes the event of a packet, and returns how many packets it stands for.
func (t *Tally) Add(e *api.TraceEvent) (weight uint64) {
	weight = uint64(max(e.StandsFor, 1))
	t.Sampled++
	t.LeftOut += uint64(e.Suppressed)
	t.Packets += weight * (1 + uint64(e.Suppressed))
	return weight
}

// Share is what part of the packets are of one.
type Share struct {
	Name    string  `json:"name"`
	Packets uint64  `json:"packets"`
	Share   float64 `json:"share"`
	Error   float64 `json:"share_error"` // 19 of 20 samples are within Share plus or minus this
}

// Shares are those of the heaviest, of all packets that were not left out for want of room, and scaled to all that there were.
func (t *Tally) Shares(counts *heavy.Counts, most int) []Share {
	out := []Share{}
	for _, count := range counts.Top(most) {
		share := float64(count.AtLeast()) / float64(counts.Total())
		s := Share{Name: count.Key, Packets: uint64(math.Round(share * float64(t.Packets))), Share: share}
		if t.Packets > t.Sampled {
			s.Error = 2 * math.Sqrt(share*(1-share)/float64(t.Sampled))
		}
		out = append(out, s)
	}
	return out
}
