// The topic of the ring of load balancers that keep the replicated table.
package hub

import (
	"bytes"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ring is the topic of who keeps the replicated table, and of the syncs that each load balancer has to lead.
type ring struct {
	subscribers
	credentials *pki.Credentials // sign it; nil: nobody does
	log         *slog.Logger

	view   *ballastv1.ReplicaView       // nil: there was none yet
	signed *ballastv1.SignedReplicaView // the same; nil: nobody signs it
	starts map[string][]*ballastv1.ReplicaSync
}

func (r *ring) set(view *ballastv1.ReplicaView, starts map[string][]*ballastv1.ReplicaSync) {
	same := func(a, b *ballastv1.ReplicaSync) bool { return proto.Equal(a, b) }
	changed := !proto.Equal(view, r.view)
	if c := r.credentials; c != nil && (changed || r.signed == nil || !bytes.Equal(r.signed.Certificate, c.Own().Raw)) {
		r.signed, changed = r.sign(view), true
	}
	before := r.starts
	r.view, r.starts = view, starts
	for s := range r.subscribers {
		if name := s.identity.Name; changed || !slices.EqualFunc(starts[name], before[name], same) {
			r.publish(s)
		}
	}
}

// sign signs a ring. nil: that failed, and load balancers can only receive it from here.
func (r *ring) sign(view *ballastv1.ReplicaView) *ballastv1.SignedReplicaView {
	text, err := proto.Marshal(view)
	var signed pki.Signed
	if err == nil {
		signed, err = r.credentials.Sign(replica.SignedRing, text)
	}
	if err != nil {
		r.log.Error("the ring of load balancers is not signed: those that hear no controller do not learn it from others", "error", err)
		return nil
	}
	return &ballastv1.SignedReplicaView{View: signed.Text, Certificate: signed.Certificate, Signature: signed.Signature}
}

func (r *ring) join(s *subscriber) {
	if s.isLB() {
		r.subscribers[s] = r.view != nil
	}
}

func (r *ring) next(s *subscriber) *frame {
	if !r.takeDue(s) {
		return nil
	}
	view := proto.CloneOf(r.view)
	view.Signed = r.signed
	for _, sync := range r.starts[s.identity.Name] {
		if sync.After == 0 {
			view.Starts = append(view.Starts, sync)
		} else { // a load balancer that cannot share must not take it for a copy to all others
			view.Shares = append(view.Shares, sync)
		}
	}
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Replicas{Replicas: view}})
}
