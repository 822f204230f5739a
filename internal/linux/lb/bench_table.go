// What the benchmark of connection tables needs of a load balancer beyond what a daemon does: states to measure in.
package lb

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ballast-lb/ballast/internal/plan"
)

// OpenBench loads a load balancer that nobody else sees. evict: its local table is an LRU, as in service, or else a hash map that is
// full when it is full.
func OpenBench(limits plan.Limits, evict bool) (*LB, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	lb := &LB{vipSlotsOf: map[uint32][]*vipSlot{}, runInsert: ebpf.RunOptions{Data: make([]byte, 64)}}
	lb.objects.prepare = func() (*ebpf.CollectionSpec, error) {
		spec, err := prepare(limits, false)
		if err == nil && !evict {
			spec.Maps["local_connections"].Type = ebpf.Hash
		}
		return spec, err
	}
	if err := lb.objects.load(ebpf.CollectionOptions{}); err != nil {
		return nil, fmt.Errorf("load the load balancer's program: %w", err)
	}
	if err := errors.Join(lb.mapTables(), lb.adoptVIPs()); err != nil {
		return nil, errors.Join(err, lb.Close())
	}
	return lb, nil
}

// BenchMemory is what the kernel accounts to a map.
type BenchMemory struct {
	Map           string  `json:"map"`
	Entries       uint32  `json:"entries"`
	Bytes         uint64  `json:"bytes"`
	BytesPerEntry float64 `json:"bytes_per_entry"`
}

// BenchMaps are maps whose memory is asked for.
type BenchMaps int

// All of them.
const (
	BenchConnections BenchMaps = iota // of connection tables
	BenchLocal
	BenchReplicas
)

// BenchMemory returns the memory of maps.
func (lb *LB) BenchMemory(of BenchMaps) (all []BenchMemory, err error) {
	o := &lb.objects
	maps := map[BenchMaps][]*ebpf.Map{BenchConnections: {o.Connections, o.ConnectionBlocks, o.ConnectionAddresses, o.Assignments},
		BenchLocal: {o.LocalConnections}, BenchReplicas: {o.ReplicaEntries, o.ReplicaAnswers}}[of]
	for _, m := range maps {
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("ask about %s: %w", m, err)
		}
		size, _ := info.Memlock()
		all = append(all, BenchMemory{Map: info.Name, Entries: m.MaxEntries(), Bytes: size,
			BytesPerEntry: float64(size) / float64(m.MaxEntries())})
	}
	return all, nil
}

// BenchForget makes the load balancer forget that connections of a service have been seen to end.
func (lb *LB) BenchForget(clients []netip.AddrPort, servicePort uint16, service uint32) error {
	type connectionKey struct {
		Client                  [16]byte
		ClientPort, ServicePort [2]byte
		Service                 uint32
	}
	for _, client := range clients {
		key := connectionKey{Client: plan.WireAddress(client.Addr()), Service: service}
		key.ClientPort[0], key.ClientPort[1] = byte(client.Port()>>8), byte(client.Port())
		key.ServicePort[0], key.ServicePort[1] = byte(servicePort>>8), byte(servicePort)
		if err := lb.objects.Closing.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget that a connection has ended: %w", err)
		}
	}
	return nil
}

// BenchUnassign makes the load balancer forget at some places which entries it gave to connections whose servers do not use them yet.
func (lb *LB) BenchUnassign(places []uint32) error {
	if _, err := lb.objects.Assignments.BatchUpdate(places, make([]uint64, len(places)), nil); err != nil {
		return fmt.Errorf("forget which entries were given: %w", err)
	}
	return nil
}
