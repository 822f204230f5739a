// Package answers finds out whether this host answers clients: its programs see SYNs come, and SYN-ACKs leave.
package answers

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/machine/unanswered"
)

const unansweredProblem = "fewer than a quarter of the SYNs that came within 10 s were answered: clients cannot connect here, whatever health checks say: " +
	"look for the route back to clients, rp_filter, a firewall, a full accept queue (`ballast doctor`)"

// Monitor finds out whether SYNs are answered. It takes no server out: whoever sends SYNs from addresses that this host has no route to could
// do that. It is safe for concurrent use.
type Monitor struct {
	path  *server.Server
	log   *slog.Logger
	judge unanswered.Judge
	lost  atomic.Bool
}

// New returns a monitor of a data path.
func New(path *server.Server, log *slog.Logger) *Monitor { return &Monitor{path: path, log: log} }

// What comes and is to be answered, and what may be an answer: of some packets the programs do not say whether they are.
const synVerdict = "ingress_no_echo"

var answerVerdicts = []string{"egress_marked_syn_ack", "egress_marked_unknown_column", "egress_marked_translated"}

// Observe is to be called once a second.
func (a *Monitor) Observe(now time.Time) {
	counters, err := a.path.CountersOf(append(answerVerdicts, synVerdict)...)
	if err != nil {
		a.lost.Store(false) // not known
		return
	}
	lost := a.judge.Look(now, handshakes(counters))
	if before := a.lost.Swap(lost); lost && !before {
		a.log.Warn(unansweredProblem)
	} else if before && !lost {
		a.log.Info("SYNs are answered again, or hardly any come")
	}
}

func handshakes(counters map[string]verdict.Traffic) (c unanswered.Counts) {
	c.SYNs = counters[synVerdict].Packets
	for _, answer := range answerVerdicts {
		c.Answers += counters[answer].Packets
	}
	return c
}

// Problems names that SYNs are not answered.
func (a *Monitor) Problems() []string {
	if a.lost.Load() {
		return []string{unansweredProblem}
	}
	return nil
}
