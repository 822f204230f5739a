// Package queueing is a world of requests that share the processors of servers, of load balancers and of a database, and has experiments about
// waiting there.
package queueing

import "github.com/ballast-lb/ballast/internal/lab/sim/event"

const (
	second      = int64(1e9) // ns
	millisecond = second / 1000
	microsecond = second / 1_000_000
)

// alarmBit tells alarms from stations in the queue.
const alarmBit = 1 << 31

// network is stations, and a clock that goes from one event to the next. Make one by newNetwork. Not safe for concurrent use.
type network struct {
	now      int64 // ns
	queue    *event.Queue
	stations []station
}

func newNetwork() *network { return &network{queue: event.New(10 * microsecond)} }

// add adds a station.
func (n *network) add(cores int) {
	n.stations = append(n.stations, station{cores: int64(cores), due: never, queued: never, settled: n.now})
}

// enter has a job begin at a station now; next tells when it is done. id comes back then.
func (n *network) enter(at int, id uint32, work int64) {
	n.stations[at].enter(n.now, id, work)
	n.follow(at)
}

// drop takes all jobs out of a station and returns their ids.
func (n *network) drop(at int) (ids []uint32) { return n.stations[at].drop(n.now) }

// busyNS is how long the cores of a station have worked until now, in sum.
func (n *network) busyNS(at int) int64 {
	n.stations[at].settle(n.now)
	return n.stations[at].busyNS
}

// alarm has next return an id < 2^31 at a time.
func (n *network) alarm(at int64, id uint32) { n.queue.Push(at, id|alarmBit) }

// follow puts an event into the queue when a station is due before the one that is there. One that comes too early is put off when it comes.
func (n *network) follow(at int) {
	if s := &n.stations[at]; s.due < s.queued {
		s.queued = s.due
		n.queue.Push(s.due, uint32(at))
	}
}

// happening is a job that is done, or an alarm.
type happening struct {
	alarm   bool
	station int    // of a job
	id      uint32 // of the job or the alarm
}

// next goes on to what happens next before a time. ok is false when nothing does; the time is limit then.
func (n *network) next(limit int64) (h happening, ok bool) {
	for {
		at, payload, ok := n.queue.PopBefore(limit)
		if !ok {
			n.now = limit
			return happening{}, false
		}
		n.now = at
		if payload&alarmBit != 0 {
			return happening{alarm: true, id: payload &^ alarmBit}, true
		}
		s := &n.stations[payload]
		if at != s.queued {
			continue // an earlier one has come since
		}
		s.queued = never
		early := s.due > at
		if !early {
			h = happening{station: int(payload), id: s.leave(at)}
		}
		if n.follow(int(payload)); !early {
			return h, true
		}
	}
}
