package bench

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// replicaKnown is how many flows a load balancer has the answers of.
const replicaKnown = 1 << 17

// replicaService is one whose connections are replicated, alone in its fleet.
func replicaService() *model.Fleet {
	service := newService(replicaVIP, model.DispatchRR)
	service.Protocol, service.Affinity, service.Fallback = model.ProtocolUDP, model.AffinityReplicated, model.FallbackHash
	fleet := &model.Fleet{Keys: keys(), Services: []model.Service{service}}
	fleet.ApplyDefaults()
	return fleet
}

func replicaFrame() wrapper.Cell {
	return wrapper.Cell{Frame: datagramFrame(replicaVIP, nil), Growth: outerLength, Flows: MaxFlows, IDs: servers}
}

func replicaKey(k0, k1 uint64, flow uint32) uint64 {
	return peermessage.FlowKey(k0, k1, wrapper.Client(flow), netip.AddrPortFrom(replicaVIP, servicePort), uint8(model.ProtocolUDP))
}

// replicaHits is a load balancer that knows what another one has answered. It is apart from that of the other rows: to look for messages costs all.
type replicaHits struct {
	*lb.LB
	place plan.Place
}

func openReplicaHits(device uint32) (h *replicaHits, err error) {
	fleet, limits := replicaService(), tableLimits(1)
	limits.Replicated = plan.DefaultLimits.Replicated
	h = &replicaHits{}
	if h.LB, err = lb.Open("", limits); err != nil {
		return nil, err
	}
	want := wantOf(fleet, device)
	want.Replicas = plan.Replicas{Self: 1, Nodes: map[uint16]netip.Addr{1: nodeAddress(1), 2: nodeAddress(2)}}
	want.Paths[nodeAddress(2)] = plan.Path{Ifindex: device, Source: nodeAddress(1), SourceMAC: [6]byte(ourMAC), DestinationMAC: [6]byte(serverMAC), MTU: 1500}
	places, err := apply(h.LB, limits, want)
	if err == nil {
		h.place = places[replicaVIP.String()]
		h.SetRing(true)
		err = h.PublishView(&lb.ReplicaView{Version: 1, HopLimit: replicaHops, List: ring.Even([]uint16{2}, 1), Chains: [][]uint16{{2}}, Since: []uint32{1}})
	}
	if err == nil {
		err = h.fill(fleet)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *replicaHits) fill(fleet *model.Fleet) error {
	k0, k1 := plan.EntryKey(fleet.Keys.Placement)
	cell := replicaFrame()
	answers := make([]replicas.Entry, replicaKnown)
	for flow := range answers {
		answers[flow] = replicas.Entry{Key: replicaKey(k0, k1, uint32(flow)), Owner: cell.Server(uint32(flow)), Period: h.ReplicaPeriod(), Flags: replicas.Cacheable}
	}
	_, table := h.ReplicaTables()
	if err := table.Put(answers); err != nil {
		return err
	}
	if got := table.Count(); got != replicaKnown {
		return fmt.Errorf("%d of %d answers are known", got, replicaKnown)
	}
	return nil
}

// subject is a packet of a connection that is known.
func (h *replicaHits) subject() subject {
	return subject{name: "replica-hit", program: h.Program(), cell: replicaFrame(), verdict: "forwarded_by_replica", place: h.place, lb: h.LB, only: replicaKnown, check: checkCookie}
}
