// Whether the kernel resets connections of session tls that its TCP was given. Health checks begin by a SYN and do not notice.
package tracking

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/linux/untracked"
	"github.com/ballast-lb/ballast/internal/machine/unanswered"
)

// Counters of the agent's programs.
const (
	takenOver         = "ingress_taken_over"
	takenOverUnmarked = "ingress_taken_over_unmarked"
	resetTakenOver    = "egress_reset_taken_over"
)

// Observe is to be called once a second. It takes no server out: a server that gets no connections could not show that it is well again.
func (t *Tracking) Observe(path *server.Server, now time.Time) {
	if len(t.wanted) == 0 {
		t.judge, t.reset = unanswered.Resets{}, ""
		return
	}
	counters, err := path.CountersOf(takenOver, takenOverUnmarked, resetTakenOver)
	if err != nil {
		t.judge, t.reset = unanswered.Resets{}, "" // not known
		return
	}
	t.observe(now, unanswered.TakenOver{
		Taken: counters[takenOver].Packets + counters[takenOverUnmarked].Packets,
		Reset: counters[resetTakenOver].Packets,
	})
}

func (t *Tracking) observe(now time.Time, total unanswered.TakenOver) {
	before := t.reset
	if t.reset = ""; t.judge.Look(now, total) {
		t.reset = t.whyReset()
	}
	if t.reset != "" && before == "" {
		t.log.Warn(t.reset)
	} else if t.reset == "" && before != "" {
		t.log.Info("the kernel resets none of the connections that load balancers begin any more, or nobody connects")
	}
}

func (t *Tracking) whyReset() string {
	cause, remedy := "no chain of nftables or iptables translates addresses: `ballast doctor` may name another cause", ""
	if translation, err := untracked.Translation(); err == nil && translation != "" {
		cause = fmt.Sprintf("most likely it tracks them and has address translation (%s)", translation)
		remedy = fmt.Sprintf(": find the rules of nftables that have connections tracked in spite of table inet %s", t.table.Name)
		if t.keep {
			remedy = ": start the agent without --keep-tracking, or do not track TCP at the services' VIPs and ports by rules of your own"
		}
	}
	return fmt.Sprintf("the kernel has reset connections that load balancers begin as soon as it was given them, within the last %d minutes (counter %s): %s%s",
		unanswered.ResetMemory/time.Minute, resetTakenOver, cause, remedy)
}
