package replication

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/plan"
)

// newReplication is that of lb1, without the rest of a daemon. Load balancers that it knows cannot be written down where refuses says why.
func newReplication(t *testing.T, refuses *error) *Replication {
	t.Helper()
	path := loaded(t, 1)
	r := &Replication{Options: Options{Name: "lb1", Address: netip.MustParseAddrPort("10.9.0.1:7475"), Save: func() {}, Log: slog.New(slog.DiscardHandler)}, path: path,
		wake: make(chan struct{}, 1), copying: map[copyKey]bool{}, calls: make(chan func(context.Context), 1), setReplicas: func(plan.Replicas) error { return *refuses }}
	r.live.Store(&live{})
	r.state.Store(&State{Incarnation: 1})
	entries, answers := path.ReplicaTables()
	r.entries, r.answers = newTable(entries, path.ReplicaPeriod, nil, r.failed), newTable(answers, path.ReplicaPeriod, nil, r.failed)
	return r
}

// ringOfThree is a ring of lb1, number 3, lb2 at a position, and lb3.
func ringOfThree(version, position uint32) *ballastv1.ReplicaView {
	return &ballastv1.ReplicaView{Revision: uint64(version), Version: version, Synced: version, Chain: 2, IdleTimeout: durationpb.New(10 * time.Minute), Since: []uint32{version, version, version}, Nodes: []*ballastv1.ReplicaNode{
		{Number: 3, Name: "lb1", Address: "10.9.0.1:7475", Incarnation: 1, OnRing: true, Life: 1, Position: 5},
		{Number: 7, Name: "lb2", Address: "10.9.0.2:7475", Incarnation: 1, OnRing: true, Life: 1, Position: position},
		{Number: 9, Name: "lb3", Address: "10.9.0.3:7475", Incarnation: 1, OnRing: true, Life: 1, Position: 1 << 31}}}
}

func TestAShareOfPlacesThatNoChainHasIsRefused(t *testing.T) {
	for places, ok := range map[[2]uint32]bool{{0, 1}: true, {1, 2}: true, {1, 3}: false, {2, 1}: false, {256, 257}: false, {0, 256}: false} {
		view := ringOfThree(5, 1<<30)
		view.Shares = []*ballastv1.ReplicaSync{{Id: 1, Low: 5, High: 9, First: places[0], After: places[1]}}
		if _, err := readView(view); (err == nil) != ok {
			t.Errorf("places %v: %v", places, err)
		}
	}
}

func TestARingThatCouldNotBeTakenIsTriedAgain(t *testing.T) {
	refuses := errors.New("no room in the kernel")
	r := newReplication(t, &refuses)
	now := time.Now()
	expect := func(what string, version uint32, problem string) {
		t.Helper()
		if have := r.live.Load(); have.view != version || problem == "" && have.problem != "" || !strings.Contains(have.problem, problem) {
			t.Errorf("%s: version %d, problem %q, want %d, %q", what, have.view, have.problem, version, problem)
		}
	}
	age := func() {
		now = now.Add(retryPeriod)
		r.age(now)
	}
	r.OnView("c1", ringOfThree(5, 1<<30))
	expect("refused", 0, "no room")
	r.OnView("c2", &ballastv1.ReplicaView{Version: 4, Nodes: []*ballastv1.ReplicaNode{{Number: 7, Name: "lb2", Address: "10.9.0.2:7475"}}})
	age()
	expect("refused again", 0, "no room")
	refuses = nil
	age()
	expect("taken", 5, "")

	r.OnView("c1", ringOfThree(6, 6))
	expect("a ring that packets cannot go by", 5, "too close together")
	age()
	expect("the same again", 5, "too close together")
	r.unshown.List[1].At = 1 << 30
	age()
	expect("it can be written", 6, "")
	r.OnView("c1", ringOfThree(7, 6))
	r.OnView("c1", ringOfThree(8, 1<<30))
	expect("the next ring", 8, "")

	r.failed(errors.New("once"))
	age()
	expect("just now", 8, "once")
	now = now.Add(problemLife)
	age()
	expect("long ago", 8, "")
}

// otherPeer is lb2, in which something happens while a copy is on its way.
type otherPeer struct {
	ballastv1connect.PeerClient
	during func()
}

func (p otherPeer) Copy(context.Context, *ballastv1.CopyRequest) (*ballastv1.CopyResponse, error) {
	p.during()
	return &ballastv1.CopyResponse{}, nil
}

func TestACopyThatIsAnsweredAfterAllEntriesAreLostIsOfNoUse(t *testing.T) {
	var refuses error
	r := newReplication(t, &refuses)
	r.OnView("c1", ringOfThree(5, 1<<30))
	r.clients.to = map[Peer]ballastv1connect.PeerClient{r.state.Load().Peers[1]: otherPeer{during: func() {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		if err := r.empty(); err != nil {
			t.Error(err)
		}
	}}}
	r.mutex.Lock()
	r.copy(replica.Message{Kind: replica.Copy, From: 3, To: 7, View: 5, Transfer: &replica.Transfer{Sync: 1, Number: 1, Low: 2, High: ring.Key(1) << 63}})
	r.mutex.Unlock()
	(<-r.calls)(t.Context())
	if r.machine != nil || len(r.copying) != 0 {
		t.Errorf("it goes on: %v, %v", r.machine, r.copying)
	}
}

func TestAnAnswerMayHaveAWholeTable(t *testing.T) {
	const entries = 1 << 18
	answer := &ballastv1.CopyResponse{}
	for i := range uint64(replicas.Buckets(entries)) * uint64(len(replicas.Bucket{}.Slot)) {
		answer.Keys, answer.Owners = append(answer.Keys, i), append(answer.Owners, 1<<16-1)
	}
	if size, limit := proto.Size(answer), copyBytesMax(entries); size > limit || 2*size < limit {
		t.Errorf("%d bytes, of which %d are read", size, limit)
	}
}
