// Connections that have ended as far as anybody can tell: their answer has expired at the load balancer that dispatched them.
package replication

import (
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
)

// ended is a server, by the number of its service.
type ended struct {
	service uint32
	id      uint16
}

// ends takes note of an answer that is removed. The caller holds the lock.
func (r *Replication) ends(e replicas.Entry) {
	if e.Flags&replicas.Dispatched != 0 {
		r.ended[ended{uint32(e.Service), e.Owner}]++
	}
}

// countEnded lowers the estimates of open connections. TCP's ends are seen in packets. The caller holds the lock.
func (r *Replication) countEnded() {
	r.Tables.Hold(func(now *dataplane.Snapshot) {
		for i := range now.Running.Services {
			s := &now.Running.Services[i]
			if !s.CountsOpen() || s.Protocol == model.ProtocolTCP {
				continue
			}
			place := now.Places[s.Name]
			for id, index := range place.Counters {
				for range r.ended[ended{place.Number, id}] {
					r.path.ForgetConnection(index)
				}
			}
		}
	})
	clear(r.ended)
}
