package replication

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
)

// told is a message of a controller, once it was found to make sense.
type told struct {
	view         View
	peers        []Peer
	incarnations map[uint16]uint64
	starts       []ring.Sync
}

func (t *told) named(name string) *Peer {
	for i := range t.peers {
		if t.peers[i].Name == name {
			return &t.peers[i]
		}
	}
	return nil
}

func (t *told) isOn(number uint16) bool {
	_, on := t.view.List.Find(number)
	return on
}

// readView refuses what the data path could not work with.
func readView(m *ballastv1.ReplicaView) (*told, error) {
	t := &told{view: View{Version: m.Version, Synced: m.Synced, Chain: int(m.Chain), Idle: m.IdleTimeout.AsDuration(), Since: m.Since, Cancelled: m.Cancelled},
		incarnations: map[uint16]uint64{}}
	for _, n := range m.Nodes {
		address, err := netip.ParseAddrPort(n.Address)
		if err != nil {
			return nil, fmt.Errorf("address of %s: %w", n.Name, err)
		}
		if n.Number == 0 || n.Number > replica.NodesMax || t.incarnations[uint16(n.Number)] != 0 || t.named(n.Name) != nil {
			return nil, fmt.Errorf("number %d of %s is out of range, or it or the name is there twice", n.Number, n.Name)
		}
		number := uint16(n.Number)
		t.peers = append(t.peers, Peer{number, n.Name, address})
		t.incarnations[number] = n.Incarnation
		if n.OnRing {
			t.view.List = append(t.view.List, ring.Member{Node: number, Life: n.Life, At: ring.Position(n.Position)})
		}
	}
	slices.SortFunc(t.view.List, func(a, b ring.Member) int { return int(int64(a.At) - int64(b.At)) })
	for i := range t.view.List {
		if i > 0 && t.view.List[i].At == t.view.List[i-1].At {
			return nil, fmt.Errorf("two load balancers are at position %d", t.view.List[i].At)
		}
	}
	for _, s := range m.Starts {
		t.starts = append(t.starts, ring.Sync{ID: s.Id, Range: ring.Range{Low: ring.Position(s.Low), High: ring.Position(s.High)}})
	}
	switch idle := model.Duration(t.view.Idle); {
	case m.Version == 0:
		return t, nil
	case len(t.view.List) == 0:
		return nil, errors.New("a ring without load balancers")
	case len(t.view.Since) != len(t.view.List):
		return nil, fmt.Errorf("%d versions of %d chains", len(t.view.Since), len(t.view.List))
	case t.view.Chain < 1 || t.view.Chain > model.MaxChain:
		return nil, fmt.Errorf("chains of %d load balancers", t.view.Chain)
	case idle < model.MinReplicaIdleTimeout || idle > model.MaxReplicaIdleTimeout:
		return nil, fmt.Errorf("an idle timeout of %v", time.Duration(idle))
	}
	return t, nil
}
