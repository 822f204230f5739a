package replication

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// A load balancer that comes back hears of a ring before that knows it: packets that came then would be of connections that others have entries for.
//
// Promise: A load balancer that is not in the ring yet is not ready, and drops replicated packets that it would
// have to ask about (`dropped_other_view`).
// Also held by TestBetweenTwoViewsOnlyAnswersCount and
// TestWhatFunctionsSendWaitsUntilTheRingKnowsTheirLoadBalancer.
func TestARingThatDoesNotNameALoadBalancerDoesNotMakeItReady(t *testing.T) {
	r := &Replication{Options: Options{Name: "lb1"}, path: loaded(t, 1)}
	r.state.Store(&State{})
	view := func(version uint32) *ballastv1.ReplicaView {
		v := &ballastv1.ReplicaView{Revision: 1, Version: version, Synced: version, Chain: 1, IdleTimeout: durationpb.New(10 * time.Minute), Nodes: []*ballastv1.ReplicaNode{
			{Number: 7, Name: "lb2", Address: "10.9.0.2:7475", Incarnation: 1}}}
		if version > 0 {
			v.Since = []uint32{version}
			v.Nodes[0].OnRing, v.Nodes[0].Life = true, 1
		}
		return v
	}
	if err := r.take(view(5), ""); err != nil || r.informed.Load() || r.nameless.Load() == nil {
		t.Errorf("a ring of others: %v, ready %v, nameless since %v", err, r.informed.Load(), r.nameless.Load())
	}
	if err := r.take(view(0), ""); err != nil || !r.informed.Load() {
		t.Errorf("no ring: %v, ready %v", err, r.informed.Load())
	}
}

func TestALoadBalancerOffTheRingIsReadyOnceItHearsOneThatIsOnIt(t *testing.T) {
	address := func(i byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, i}), Port) }
	peers := []Peer{{1, "lb1", address(1)}, {2, "lb2", address(2)}, {3, "lb3", address(3)}}
	r := &Replication{Options: Options{Address: address(1)}, path: loaded(t, 1)}
	r.live.Store(&live{})
	expect := func(what, want string) {
		t.Helper()
		if why := r.apart(); want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", what, why, want)
		}
	}
	expect("at the start", "no controller has sent the list")
	r.informed.Store(true)
	r.state.Store(&State{Number: 1, Peers: peers})
	expect("no ring", "")
	on := func(numbers ...uint16) {
		view := &View{Version: 5}
		for _, number := range numbers {
			view.List = append(view.List, ring.Member{Node: number})
		}
		r.state.Store(&State{Number: 1, Peers: peers, View: view})
	}
	on(1, 2)
	expect("on the ring", "")
	on(2)
	expect("off the ring, and nobody was heard yet", "UDP port 6080")
	r.pings.peers = map[Peer]*pinged{peers[1]: {first: 1, last: 9}, peers[2]: {first: 1, last: 9, heard: 9}}
	expect("heard is one that is off the ring, too", "UDP port 6080")
	if problems := r.Problems(); len(problems) != 1 || !strings.HasPrefix(problems[0], "load balancer lb2 at 10.9.0.2 does not answer") {
		t.Errorf("off the ring it tells %q", problems)
	}
	r.pings.peers[peers[1]].heard = 8
	expect("one of the ring is heard", "")
	long := time.Now().Add(-time.Minute)
	r.nameless.Store(&long)
	expect("a ring of others that gives no number", "see `ballast ctl replica list`")
}

func TestFullTablesAreToldWithWhatComesOfThem(t *testing.T) {
	r := &Replication{Options: Options{Address: netip.MustParseAddrPort("10.9.0.1:7475")}, path: loaded(t, 1)}
	r.state.Store(&State{Number: 1, Peers: []Peer{{1, "lb1", r.Address}}})
	for want, now := range map[string]*live{"go by hash": {entries: r.path.ReplicaCapacity()}, "each packet is asked again": {answers: r.path.ReplicaCapacity()}} {
		r.live.Store(now)
		if problems := r.Problems(); len(problems) != 1 || !strings.Contains(problems[0], want) || !strings.Contains(problems[0], "Larger tables") {
			t.Errorf("%q, want %q", problems, want)
		}
	}
}

// Promise: A replicated table that is 80 % full is reported with the number of load balancers and the size that make it half full.
func TestATableIsReportedBeforeItIsFullWithWhatGivesItRoom(t *testing.T) {
	r := &Replication{Options: Options{Address: netip.MustParseAddrPort("10.9.0.1:7475")}, path: loaded(t, 1)}
	r.state.Store(&State{Number: 1, Peers: []Peer{{1, "lb1", r.Address}}, View: &View{Version: 1, List: ring.Even([]uint16{1, 2, 3, 4}, 1)}})
	room := r.path.ReplicaCapacity()
	for share, want := range map[uint64]string{79: "", 80: "add 3 load balancers, start all with --max-replicated", 100: "add 4 load balancers"} {
		entries := (room*share + 99) / 100
		if share < 80 {
			entries = room * share / 100
		}
		r.live.Store(&live{entries: entries})
		problems := r.Problems()
		if found := len(problems) == 1 && strings.Contains(problems[0], want) && strings.Contains(problems[0], fmt.Sprint(2*entries)); (want == "") != (len(problems) == 0) || want != "" && !found {
			t.Errorf("%d %% of %d: %q, want %q", share, room, problems, want)
		}
	}
}
