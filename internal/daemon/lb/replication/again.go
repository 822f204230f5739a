// What the kernel or the tables refused is told, and tried again.
package replication

import (
	"time"

	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// show has packets go by a view. What cannot be written is tried again. The caller holds the lock.
func (r *Replication) show(v *lb.ReplicaView) {
	if err := r.path.PublishView(v); err != nil {
		r.unshown = v
		r.failed(err)
	} else if r.unshown != nil {
		r.unshown = nil
		r.recovered()
	}
}

// failed says what never should be.
func (r *Replication) failed(err error) {
	now := *r.live.Load()
	if now.problem != err.Error() {
		r.Log.Error("replicated entries are not as they should be", "error", err)
	}
	now.problem, now.failed = err.Error(), time.Now()
	r.live.Store(&now)
}

// recovered takes back what failed has said.
func (r *Replication) recovered() {
	now := *r.live.Load()
	now.problem = ""
	r.live.Store(&now)
}

// again tries what has failed once more. The caller holds the lock.
func (r *Replication) again(now time.Time) {
	if r.untaken != nil {
		if err := r.take(r.untaken, ""); err != nil {
			r.failed(err)
		} else {
			r.untaken = nil
		}
	}
	if r.unshown != nil {
		r.show(r.unshown)
	}
	if live := r.live.Load(); live.problem != "" && now.Sub(live.failed) >= problemLife {
		r.recovered()
	}
}
