// Servers that report nothing: what the load balancers see of them (Spotlight V-D1).
package balance

import "time"

// seenFor is how long an estimate stands without a report: load balancers tell everything every 10 s, and else what has changed.
const seenFor = 25 * time.Second

// traffic is what the load balancers saw of one server, all of them together.
type traffic struct {
	nodes map[string]*node
	open  float64 // connections dispatched less those seen to end
	total uint64  // dispatched since the first report of each node
	// Of late: decayed since at.
	begun, packets float64
	at             time.Time
	seen           time.Time // when a load balancer last reported anything of it
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
	begun, ended, packets := t.Connections-n.last.Connections, t.Closed-n.last.Closed, t.Packets-n.last.Packets
	if t.Connections < n.last.Connections || t.Closed < n.last.Closed || t.Packets < n.last.Packets {
		begun, ended, packets = t.Connections, t.Closed, t.Packets
	}
	all.open += float64(begun) - float64(ended)
	if remains := decay(now.Sub(all.at)); known {
		all.begun = all.begun*remains + float64(begun)
		all.packets = all.packets*remains + float64(packets)
		all.at = now
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
