// The ring of load balancers that keep the replicated table: what they are told of it, and what they say.
package hub

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
)

// mostSyncs is how many syncs a load balancer may tell of.
const mostSyncs = 1024

// replicaReport is what a load balancer has said last, and when.
type replicaReport struct {
	*ballastv1.ReplicaReport
	at time.Time
}

// ring is who keeps the replicated table, and what load balancers say of it. The hub's lock guards it.
type ring struct {
	credentials *pki.Credentials // sign it; nil: nobody does
	log         *slog.Logger

	view    *ballastv1.ReplicaView       // nil: there was none yet
	signed  *ballastv1.SignedReplicaView // the same; nil: nobody signs it
	starts  map[string][]*ballastv1.ReplicaSync
	reports map[string]replicaReport // by load balancer
}

func newRing(credentials *pki.Credentials, log *slog.Logger) *ring {
	return &ring{credentials: credentials, log: log, reports: map[string]replicaReport{}}
}

// set takes a ring and the syncs that load balancers are to lead. It returns whether a load balancer has to be told.
func (r *ring) set(view *ballastv1.ReplicaView, starts map[string][]*ballastv1.ReplicaSync) (news func(lb string) bool) {
	same := func(a, b *ballastv1.ReplicaSync) bool { return proto.Equal(a, b) }
	changed := !proto.Equal(view, r.view)
	if c := r.credentials; c != nil && (changed || r.signed == nil || !bytes.Equal(r.signed.Certificate, c.Own().Raw)) {
		r.signed, changed = r.sign(view), true
	}
	before := r.starts
	r.view, r.starts = view, starts
	return func(lb string) bool { return changed || !slices.EqualFunc(starts[lb], before[lb], same) }
}

// sign answers for a ring. nil: that failed, and load balancers can only hear it here.
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

// message is what a load balancer is told.
func (r *ring) message(lb string) *ballastv1.ToNode {
	view := proto.CloneOf(r.view)
	view.Starts, view.Signed = r.starts[lb], r.signed
	return &ballastv1.ToNode{Message: &ballastv1.ToNode_Replicas{Replicas: view}}
}

// SetReplicas says who keeps the replicated table, and which syncs each load balancer is to lead.
func (h *Hub) SetReplicas(view *ballastv1.ReplicaView, starts map[string][]*ballastv1.ReplicaSync) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	news := h.ring.set(view, starts)
	for name, p := range h.lbs {
		if news(name) {
			p.replicas = true
			p.wakeUp()
		}
	}
}

// takeReplica takes what a load balancer says, if its stream is the newest of it. What makes no sense is cut short. Nobody knows of which host it is where
// two join as one: that one is taken off the ring once, and not with every change of places.
func (h *Hub) takeReplica(p *peer, told *ballastv1.ReplicaReport) {
	told.Heard = told.Heard[:min(len(told.Heard), replica.NodesMax)]
	told.Silent = told.Silent[:min(len(told.Silent), replica.NodesMax)]
	told.Done = told.Done[:min(len(told.Done), mostSyncs)]
	told.Syncs = told.Syncs[:min(len(told.Syncs), mostSyncs)]
	h.mutex.Lock()
	if h.peers[p.key()] == p && p.contested() == "" {
		h.ring.reports[p.identity.Name] = replicaReport{told, time.Now()}
	}
	h.mutex.Unlock()
	if h.options.Replicated != nil {
		h.options.Replicated()
	}
}

// forgetReplicas forgets what was said long ago. The caller holds the lock.
func (h *Hub) forgetReplicas() {
	for name, r := range h.ring.reports {
		if time.Since(r.at) > LostLife && h.peers[peerKey{pki.LB, name}] == nil {
			delete(h.ring.reports, name)
		}
	}
}

// ReplicaReports returns what load balancers have said last of the ring, also those that are not connected any more.
func (h *Hub) ReplicaReports() (reports []replica.Report) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.forgetReplicas()
	for name, r := range h.ring.reports {
		report := replica.Report{Name: name, Age: time.Since(r.at), Incarnation: r.Incarnation, View: r.View, Synced: r.Synced, Done: r.Done,
			Heard: numbers(r.Heard), Silent: numbers(r.Silent)}
		address, err := netip.ParseAddrPort(r.Address)
		if host := address.Addr().Unmap(); err == nil && host.Zone() == "" && host.IsGlobalUnicast() && r.Incarnation != 0 {
			report.Address = netip.AddrPortFrom(host, address.Port())
		}
		reports = append(reports, report)
	}
	return reports
}

// ReplicaReport returns what a load balancer has said last, and how long ago; nil: nothing.
func (h *Hub) ReplicaReport(name string) (report *ballastv1.ReplicaReport, age time.Duration) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	r := h.ring.reports[name]
	return r.ReplicaReport, time.Since(r.at)
}

func numbers(told []uint32) (list []uint16) {
	for _, number := range told {
		if number <= replica.NodesMax {
			list = append(list, uint16(number))
		}
	}
	return list
}
