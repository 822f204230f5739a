// A load balancer that no controller tells of the ring: it hears by the answers to its pings that others go by a newer one, says so, and asks them for it.
package replication

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	behindLife = time.Second            // that most others may go by a newer ring before this node is not ready
	askAfter   = 500 * time.Millisecond // that some have gone by a newer ring until they are asked for it
	askPeriod  = time.Second            // between two that are asked
	askTimeout = 2 * time.Second
)

// behind is what pongs say of newer rings. A pong proves nothing: whoever has the keys of a load balancer can make one. So a single one makes others ask, which
// a controller's signature decides, and only most of those that answer make this node not ready.
type behind struct {
	mutex sync.Mutex
	own   uint32
	most  uint32    // version that most others went by when this node began to be behind it; 0: it is not behind
	since time.Time // when it began
	newer []Peer    // those that go by a newer ring, by number
	first time.Time // since when there are such
}

// note takes the version that this node goes by, and those of the others that answer.
func (b *behind) note(now time.Time, own uint32, views map[Peer]uint32) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.own = own
	var versions []uint32
	newer := []Peer{}
	for peer, version := range views {
		versions = append(versions, version)
		if version > own {
			newer = append(newer, peer)
		}
	}
	slices.SortFunc(newer, func(a, b Peer) int { return int(a.Number) - int(b.Number) })
	if len(b.newer) == 0 {
		b.first = now
	}
	b.newer = newer
	most := uint32(0) // more than half of the others have it, or a newer one
	if len(versions) > 0 {
		slices.Sort(versions)
		most = versions[(len(versions)-1)/2]
	}
	switch {
	case most <= own:
		b.most = 0
	case b.most == 0 || own >= b.most: // it keeps up, or what it was behind of is there
		b.most, b.since = most, now
	}
}

// why says that this node is behind, for people; empty: it is not.
func (b *behind) why(now time.Time) string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.most == 0 || now.Sub(b.since) < behindLife {
		return ""
	}
	return fmt.Sprintf("this load balancer goes by version %d of the ring, most others by version %d or newer: no controller sends it the ring, and it cannot get it from them", b.own, b.most)
}

// asked returns whom to ask for a newer ring, one after the other.
func (b *behind) asked(now time.Time, turn int) (Peer, bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.newer) == 0 || now.Sub(b.first) < askAfter {
		return Peer{}, false
	}
	return b.newer[turn%len(b.newer)], true
}

// catchUp asks others for a newer ring than this node goes by, until ctx ends.
func (r *Replication) catchUp(ctx context.Context) {
	tick := time.NewTicker(tickPeriod)
	defer tick.Stop()
	said := ""
	var last time.Time
	for turn := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		peer, wanted := r.behind.asked(time.Now(), turn)
		if !wanted || time.Since(last) < askPeriod {
			continue
		}
		turn++
		err := r.askRing(ctx, peer)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			r.Log.Warn("a newer ring is not got from the load balancer that goes by it", "from", peer.Name, "error", err)
			said = err.Error()
		}
		last = time.Now()
	}
}

// askRing gets a newer ring from a load balancer, and goes by it. What makes it a ring is the signature of a controller that is not revoked; what makes it no old
// one is its version.
func (r *Replication) askRing(ctx context.Context, peer Peer) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := r.client(peer).GetRing(ctx, &ballastv1.GetRingRequest{})
	if err != nil {
		return err
	}
	signer, err := r.Credentials.SignedBy(pki.Controller, replica.SignedRing, pki.Signed{Text: answer.View, Certificate: answer.Certificate, Signature: answer.Signature}, time.Now())
	if err != nil {
		return err
	}
	view := &ballastv1.ReplicaView{}
	if err := proto.Unmarshal(answer.View, view); err != nil {
		return fmt.Errorf("read the ring that %s has signed: %w", signer.Name, err)
	}
	view.Starts, view.Shares, view.Signed = nil, nil, answer
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.take(view, peer.Name); err != nil {
		return err
	}
	if state := r.state.Load(); state.View != nil && state.View.Version == view.Version && state.PassedOn == peer.Name {
		r.Log.Warn("no controller sends this load balancer the ring: it uses the one that another load balancer passed on", "from", peer.Name, "signed by", signer.Name,
			"version", view.Version, "on the ring", state.isOnRing(state.Number))
	}
	r.observe()
	return nil
}
