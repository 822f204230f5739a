package benefit

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
)

// The paper's figures 7, 11 and 12, as far as these servers can carry them: with 4 MiB Redis lets requests fail.
var (
	sweptRequests = []int{1, 2, 5, 20, 50}
	sweptBytes    = []int{small, 128 << 10, large}
)

const (
	evenShare = 0.6 // of what servers carry
	evenUpTo  = 19  // requests of a session, 10 in the mean
	tooUneven = 3   // times as uneven as by turns
)

// sweep measures all systems by requests of a session, and by the size of its state, and how even their load is.
func (m *measurement) sweep() {
	var byRequests, bySize []load
	for _, n := range sweptRequests {
		byRequests = append(byRequests, load{fmt.Sprintf("requests_%d", n), n, clientsAtOnce, tlsclient.State{Bytes: large}})
	}
	for _, bytes := range sweptBytes {
		bySize = append(bySize, usual(fmt.Sprintf("kib_%d", bytes>>10), tlsclient.State{Bytes: bytes}))
	}
	m.series(byRequests)
	m.series(bySize)
	m.even(evenShare * m.median(m.systems[0], bySize[0].name).perSecond)
}

// series measures all systems with one load after the other, of which the last must show more of what session: tls is good for than the first.
func (m *measurement) series(loads []load) {
	var gains []float64
	for _, l := range loads {
		for range repetitions {
			for _, one := range m.systems {
				m.once(one, l)
			}
		}
		session := m.median(m.systems[1], l.name)
		for _, one := range m.systems {
			m.compare(l.name, one, m.median(one, l.name), session)
		}
		gains = append(gains, session.perSecond/m.median(m.systems[0], l.name).perSecond)
	}
	first, last := gains[0], gains[len(gains)-1]
	m.run.Result.Expect(last > first, "session: tls carries %.2f times as much as Redis with %s, and %.2f times with %s", first, loads[0].name, last,
		loads[len(loads)-1].name)
}

// even offers sessions of random lengths, with pauses of 1 s in the mean, to servers that take turns for connections, and to those that keep sessions.
func (m *measurement) even(perSecond float64) {
	l := load{"even", evenUpTo, int(perSecond), tlsclient.State{Bytes: small, PerSecond: perSecond, UpTo: evenUpTo}}
	for range repetitions {
		for _, one := range m.systems[:2] {
			m.once(one, l)
		}
	}
	turns, session := m.median(m.systems[0], l.name).uneven, m.median(m.systems[1], l.name).uneven
	m.run.Result.Measure("even_turns", turns)
	m.run.Result.Measure("even_session", session)
	m.run.Result.Expect(session < tooUneven*turns, "connections of servers vary by %.2f of their mean with session: tls, and by %.2f if each goes by turns", session, turns)
}
