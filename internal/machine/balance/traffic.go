// Servers that report nothing: what the load balancers see of them (Spotlight V-D1).
package balance

import (
	"math"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	seenFor     = 25 * time.Second       // how long an estimate stands without a report: load balancers tell everything every 10 s, and else what has changed
	rateAtLeast = 100 * time.Millisecond // half-life of rates: load balancers report every 25 to 75 ms, or less often
)

// traffic is what the load balancers saw of one server, all of them together.
type traffic struct {
	nodes map[string]*node
	open  float64 // connections dispatched less those seen to end
	total uint64  // dispatched since the first report of each node
	// Of late: decayed since at.
	begun, packets float64
	at             time.Time
	rates          rates
	seen           time.Time // when a load balancer last reported anything of it
}

// rates are packets and bytes that load balancers sent of late: decayed since at. Reports of one load balancer come at irregular times, and
// may arrive together, so a quotient of the last two would jump.
type rates struct {
	packets, bytes float64
	at             time.Time
}

// rateHalfLife is that of rates: two intervals of load, in which each load balancer reports.
func (s *Service) rateHalfLife() time.Duration { return max(2*s.interval, rateAtLeast) }

func (r *rates) add(now time.Time, halfLife time.Duration, packets, bytes uint64) {
	remains := halved(now.Sub(r.at), halfLife)
	r.packets, r.bytes, r.at = r.packets*remains+float64(packets), r.bytes*remains+float64(bytes), now
}

// perSecond returns the rate that a source measures.
func (r *rates) perSecond(now time.Time, halfLife time.Duration, source model.LoadSource) float64 {
	sum := r.packets
	if source == model.LoadBytes {
		sum = r.bytes
	}
	return sum * halved(now.Sub(r.at), halfLife) * math.Ln2 / halfLife.Seconds()
}

type node struct {
	last Seen
	at   time.Time
}

// Seen takes the counters that a load balancer reports of a server. Counters that fall mean that it started anew.
//
// A connection may begin at one load balancer and end at another, so that only the sum means anything: one of them may have seen
// more ends than beginnings. A load balancer that is silent keeps its part in the sum: its connections live on by way of the
// others, which will see them end.
//
// Departs from Spotlight V-D1, which counts requests and answers: the data path does not read what is inside connections, and with
// direct return it does not see answers at all. A connection whose client vanished without a word stays in the sum. That happens to
// servers in proportion to what they were given, and so it draws weights towards each other: an estimate that has gone wrong makes
// the policy more like round robin.
func (s *Service) Seen(now time.Time, lb string, id uint16, t Seen) {
	s.seenAt = now
	if s.traffic == nil {
		s.traffic = make(map[uint16]*traffic)
	}
	all := s.traffic[id]
	if all == nil {
		all = &traffic{nodes: make(map[string]*node)}
		s.traffic[id] = all
	}
	all.seen = now
	n, known := all.nodes[lb]
	if !known {
		n = &node{}
		all.nodes[lb] = n
	}
	before := n.last
	if t.Connections < before.Connections || t.Closed < before.Closed || t.Packets < before.Packets || t.Bytes < before.Bytes {
		before = Seen{}
	}
	begun, ended, packets := t.Connections-before.Connections, t.Closed-before.Closed, t.Packets-before.Packets
	all.open += float64(begun) - float64(ended)
	if remains := decay(now.Sub(all.at)); known {
		all.begun = all.begun*remains + float64(begun)
		all.packets = all.packets*remains + float64(packets)
		all.at = now
		all.rates.add(now, s.rateHalfLife(), packets, t.Bytes-before.Bytes)
		all.total += begun
		s.began(now, lb, float64(begun))
	} else {
		s.began(now, lb, 0)
		// What ended here began at one that nobody here has heard of. Later on the sum may be below zero for a moment, when the end
		// is reported before the beginning: lifting it then would add up.
		all.open = max(all.open, 0)
	}
	n.last, n.at = t, now
}

// refused returns how many of the connections of late got somewhere, at most, and how many did not. A server that refuses
// connections, or does not answer, gets one packet for each; one that serves them gets leastPackets or more.
func (t *traffic) refused(now time.Time) (answered, failed float64) {
	remains := decay(now.Sub(t.at))
	answered = min(t.begun, max(t.packets-t.begun, 0)/(leastPackets-1))
	return answered * remains, (t.begun - answered) * remains
}
