package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Replicas are the load balancers that replicate entries, as one of them sees them. The zero value: there are none.
type Replicas struct {
	Self  uint16                // number of this one, 0: it has none
	Nodes map[uint16]netip.Addr // number -> where messages to it go; all of one family
}

// Implementation constants: those of bpf/lb/state/replicas.h.
const (
	ReplicaNodes = 64 // their numbers are below
	ReplicaChain = 4  // nodes of a chain at most
)

// ReplicaConfig is struct replica_config.
type ReplicaConfig struct {
	KeyHash siphash.State
	MACHash [2]siphash.State // by parity of the epoch
	Address [16]byte
	Self    uint16
	IPv6    uint8
	Parity  uint8    // of the epoch in use
	Known   [2]uint8 // by parity
	_       uint16
	Peers   [ReplicaNodes]ServerRow // by number
}

// PeerKey is what messages of load balancers are authenticated with, of an epoch's cookie key; EntryKey is what connections are told apart by, of the
// placement key: it outlives rotations, as entries do.
func PeerKey(fleet [16]byte) (k0, k1 uint64) { return derived(fleet, cookie.ForPeers) }

// EntryKey: see PeerKey.
func EntryKey(placement [16]byte) (k0, k1 uint64) { return derived(placement, cookie.ForEntries) }

func derived(fleet [16]byte, purpose string) (k0, k1 uint64) {
	key := cookie.Derive(fleet, purpose, netip.Addr{}, 0, 16)
	return binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])
}

// replicaConfig is the zero value for a node that is none of them.
func replicaConfig(want *Want) (c ReplicaConfig) {
	self, known := want.Replicas.Nodes[want.Replicas.Self]
	if !known || want.Replicas.Self == 0 {
		return c
	}
	c.Self, c.Address, c.Parity = want.Replicas.Self, WireAddress(self), uint8(want.Keys.Current&1)
	if self.Is6() {
		c.IPv6 = 1
	}
	c.KeyHash = siphash.Begin(EntryKey(want.Keys.Placement))
	for epoch, fleet := range want.Keys.Cookie {
		c.MACHash[epoch&1], c.Known[epoch&1] = siphash.Begin(PeerKey(fleet)), 1
	}
	for number, address := range want.Replicas.Nodes {
		if number < ReplicaNodes && number != c.Self && address.Is6() == self.Is6() {
			c.Peers[number] = wayTo(want, address)
		}
	}
	return c
}

// publishReplicas writes what messages go by, if it is another.
func (u *update) publishReplicas(want *Want) error {
	t, next := u.tables, replicaConfig(want)
	if next == t.replicas {
		return nil
	}
	row := span{}
	if next != (ReplicaConfig{}) {
		var err error
		if row, err = t.replicaRows.take(1); err != nil {
			return err
		}
		u.add(WriteReplicas{row.base, &next})
	}
	u.add(PointReplicas{row.base})
	t.replicaRows.give(t.replicaRow)
	t.replicas, t.replicaRow = next, row
	return nil
}

// restoreReplicas finds out what is published.
func (t *Tables) restoreReplicas(r Reader) {
	row, config := r.Replicas()
	t.replicas = *config
	if row != 0 {
		t.replicaRow = span{row, 1}
		t.replicaRows.reserve(t.replicaRow)
	}
}
