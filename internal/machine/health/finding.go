package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// A Loss is why packets of a service do not reach a server's applications, as its agent finds. Zero: they do.
type Loss struct {
	Reason string
	Unseen bool // a check through the tunnel does not see it
}

// finding is what the agent of a server says about one service.
type finding struct {
	seen   time.Time // last
	loss   Loss      // the last reason why packets are lost; kept while the server has to prove itself
	server *Server   // damping
	judged time.Time // when an observation last counted
	began  time.Time // of the loss, where the agent had found none before; zero: it may have been there for long
}

// Found takes what an agent of a server finds of the service's packets.
//
// A loss counts at once. It is over when the agent has found nothing for rise intervals, more for an agent that changes its
// mind, as with checks. Silence is no finding: what has not been repeated for ViewLife is forgotten. changed says that there is something to
// judge.
func (j *Judge) Found(now time.Time, agent string, id uint16, loss Loss, h *model.Health) (changed bool) {
	f := j.findings[id][agent]
	first := f == nil
	if first {
		f = &finding{server: &Server{}}
		if j.findings == nil {
			j.findings = map[uint16]map[string]*finding{}
		}
		if j.findings[id] == nil {
			j.findings[id] = map[string]*finding{}
		}
		j.findings[id][agent] = f
	}
	f.seen = now
	if first && loss.Reason == "" {
		return false
	}
	if loss.Reason != "" {
		if f.loss = loss; f.server.Healthy() && !first {
			f.began = now
		}
	} else if now.Sub(f.judged) < time.Duration(h.Interval) { // how often an agent speaks does not count
		return false
	}
	once := *h
	once.Fall = 1
	f.judged = now
	return f.server.Observe(now, loss.Reason == "", &once)
}

// forgetFindings drops what was not repeated, and what is about servers that are gone.
func (j *Judge) forgetFindings(now time.Time, here map[uint16]bool) {
	maps.DeleteFunc(j.findings, func(id uint16, by map[string]*finding) bool {
		maps.DeleteFunc(by, func(_ string, f *finding) bool { return now.Sub(f.seen) >= ViewLife })
		return !here[id] || len(by) == 0
	})
}

// Lost reports whether the server's agents find that packets for it are lost, as of the last Down.
func (j *Judge) Lost(id uint16) bool { return j.verdicts[id].lost != "" }

// lost tells why packets for a server are lost, as its agents find; empty: they are not. A check that has gone through the tunnel to the VIP
// and succeeded knows better of what it sees, however the packets get there: the host may translate the VIP's address, for example. One from before the loss
// knows nothing of it.
func (j *Judge) lost(id uint16) string {
	succeeded := func(since time.Time) bool {
		return slices.ContainsFunc(j.seen.voters, func(lb string) bool {
			v, ok := j.views[id][lb]
			return ok && v.Healthy && !v.Direct && (v.Succeeded.IsZero() || !v.Succeeded.Before(since))
		})
	}
	var losses []string
	for _, agent := range slices.Sorted(maps.Keys(j.findings[id])) {
		if f := j.findings[id][agent]; !f.server.Healthy() && (f.loss.Unseen || !succeeded(f.began)) {
			losses = append(losses, fmt.Sprintf("%s (agent %s)", f.loss.Reason, agent))
		}
	}
	return strings.Join(losses, "; ")
}
