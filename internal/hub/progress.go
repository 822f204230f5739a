// How far a node is with the desired state.
package hub

import (
	"fmt"
	"time"
)

// behindTime is what a load balancer may take for a state before it is called behind.
const behindTime = 5 * time.Second

// progress is how far a node is with the desired state. The zero value: it was sent nothing.
type progress struct {
	sent     uint64    // revision that it was sent last
	reported uint64    // that it has applied; see applied
	behind   time.Time // load balancers: since when they have applied nothing of what they were sent; zero: they have all
	ahead    time.Time // when it first reported a revision that was not known here
}

// applied is the revision that a node has applied. Another controller may have sent a newer one, which is believed once it was sent from
// here, too: a node can name any number.
func (p *progress) applied() uint64 { return min(p.reported, p.sent) }

// send notes that a node is sent a revision; acknowledges: it reports when it has applied it.
func (p *progress) send(revision uint64, acknowledges bool) {
	if p.sent = revision; p.behind.IsZero() && acknowledges {
		p.behind = time.Now()
	}
}

// report takes which revision a node reports to have applied. known is the newest here.
func (p *progress) report(revision, known uint64, acknowledges bool) {
	before := p.reported
	p.behind, p.reported = time.Time{}, revision
	if p.applied() < p.sent && acknowledges {
		p.behind = time.Now()
	}
	if revision > known && before <= known {
		p.ahead = time.Now()
	}
}

// lag is for how long a load balancer has applied nothing of what it was sent; 0: nothing is left.
func (p *progress) lag(now time.Time) time.Duration {
	if p.behind.IsZero() || p.applied() >= p.sent {
		return 0
	}
	return now.Sub(p.behind)
}

// behindProblem is that a node does not apply what it was sent; empty: it does.
func (p *progress) behindProblem(now time.Time) string {
	if p.lag(now) <= behindTime {
		return ""
	}
	return fmt.Sprintf("its tables have revision %d, it was sent %d", p.applied(), p.sent)
}

// aheadProblem is that a node reports a revision that this controller does not know; empty: it does not.
func (p *progress) aheadProblem(now time.Time, known uint64) string {
	if p.reported <= known || now.Sub(p.ahead) <= behindTime {
		return ""
	}
	return fmt.Sprintf("it reports revision %d, and this controller knows none after %d: this controller does not hear the others, or another host has the node's certificate (\"Lost key\" in docs/run/operate.md)",
		p.reported, known)
}
