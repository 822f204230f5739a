package lb

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// replicatedWorld has services whose packets may take the fast path of lb_replicated, on a node that asks another one. "other" is for goesFast.
func replicatedWorld(t *testing.T) *world {
	replicated := func(protocol model.Protocol, forward model.Forward, change func(*model.Service)) func(*model.Service) {
		return func(s *model.Service) {
			s.Protocol, s.Affinity, s.Forward, s.Fallback = protocol, model.AffinityReplicated, forward, model.FallbackHash
			if change != nil {
				change(s)
			}
		}
	}
	tcp, udp := model.ProtocolTCP, model.ProtocolUDP
	w := newWorld(t, serviceOf("known", fastVIP(50), replicated(tcp, model.ForwardIPIP, nil)), serviceOf("known-udp", fastVIP(51), replicated(udp, model.ForwardIPIP, nil)),
		serviceOf("known-six", plus(vip6, 20), replicated(tcp, model.ForwardIPIP, nil)), serviceOf("known-udp-six", plus(vip6, 21), replicated(udp, model.ForwardIPIP, nil)),
		serviceOf("known-over6", fastVIP(52), replicated(tcp, model.ForwardIPIP, withServers(true, 1, 2))),
		serviceOf("known-gue", fastVIP(53), replicated(udp, model.ForwardGUE, nil)), serviceOf("known-l2", fastVIP(54), replicated(tcp, model.ForwardL2, nil)),
		serviceOf("known-narrow", fastVIP(55), replicated(udp, model.ForwardIPIP, withServers(false, 1, 127))),
		serviceOf("other", fastVIP(99), fastCookies(16, withServers(false, 1, 2, 3, 127))))
	self, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	w.update(func(want *plan.Want) {
		want.Keys = testKeys(1, 2)
		want.Replicas = plan.Replicas{Self: 1, Nodes: map[uint16]netip.Addr{1: self, 2: peer}}
		want.Paths[peer] = testPath(peer)
		address := serverIn(service(want, "known-narrow"), 127).Address
		path := testPath(address)
		path.VLAN = 7
		want.Paths[address] = path
	})
	w.lb.SetRing(true)
	mustSet(w.lb.PublishView(&ReplicaView{Version: 1, HopLimit: 8, List: ring.Even([]uint16{2}, 1), Chains: [][]uint16{{2}}, Since: []uint32{1}}))
	t.Cleanup(func() { // the load balancer is that of other tests too
		w.update(func(want *plan.Want) { want.Replicas = plan.Replicas{} })
		w.lb.SetRing(false)
		mustSet(w.lb.PublishView(&ReplicaView{}))
		clear(w.lb.tables.replicas.entries)
		clear(w.lb.tables.replicas.answers)
	})
	return w
}

// replicate makes of the entries of a replicated connection what the length of its frame says: none, or such as are known from others or from this node's
// own part of the chains; of servers that there are and are not; new and old; such as may be answered from and not. Nothing else is known.
func (w *world) replicate(frame []byte) {
	p, verdict := parseRef(frame)
	if verdict != lbVerdictVERDICT_CONTINUE || len(p.ip) < p.l4+4 || w.want.Replicas.Self == 0 {
		return
	}
	s, _ := w.vipService(p.destination, p.dport, p.protocol)
	if s == nil || s.Affinity != model.AffinityReplicated {
		return
	}
	clear(w.lb.tables.replicas.entries)
	clear(w.lb.tables.replicas.answers)
	k0, k1 := plan.EntryKey(w.want.Keys.Placement)
	period := w.lb.ReplicaPeriod()
	known := func(owner uint16, period uint32, flags uint8) []replicas.Entry {
		key := peermessage.FlowKey(k0, k1, netip.AddrPortFrom(p.source, p.sport), netip.AddrPortFrom(p.destination, p.dport), p.protocol)
		return []replicas.Entry{{Key: key, Owner: owner, Period: period, Flags: flags}}
	}
	owner := s.Servers[len(frame)/12%len(s.Servers)].ID
	entries, answers := w.lb.ReplicaTables()
	put := func(table *replicas.Table, entry []replicas.Entry) { mustSet(table.Put(entry)) }
	switch len(frame) % 12 {
	case 0:
	case 1:
		put(answers, known(owner, period-1, replicas.Cacheable))
	case 2:
		put(answers, known(30000, period, replicas.Cacheable))
	case 3:
		put(entries, known(owner, period, 0))
	case 4:
		put(entries, known(owner, period-1, replicas.Cacheable))
	case 5:
		put(entries, known(30000, period, replicas.Cacheable))
	case 6:
		put(answers, known(30000, period, replicas.Cacheable))
		put(entries, known(owner, period, replicas.Cacheable))
	case 7:
		put(answers, known(s.Servers[0].ID, period-1, replicas.Cacheable))
		put(entries, known(owner, period, replicas.Cacheable))
	case 8:
		put(entries, known(owner, period, replicas.Cacheable))
	default:
		put(answers, known(owner, period, replicas.Cacheable))
	}
}

func TestTheFastPathFindsReplicatedConnectionsAsTheSlowPathDoes(t *testing.T) {
	w := replicatedWorld(t)
	names := []string{"known", "known-udp", "known-six", "known-udp-six", "known-over6", "known-gue", "known-l2", "known-narrow"}
	comparePaths(t, w, fastKinds{fast: names})
}
