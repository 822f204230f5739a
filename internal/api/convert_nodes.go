package api

import (
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// NodesToProto returns the nodes with a tier, and how those of the second are checked, as load balancers are told them.
func NodesToProto(f *model.Fleet) *ballastv1.Nodes {
	return &ballastv1.Nodes{Nodes: nodesToProto(f.Nodes), Health: nodeHealthToProto(&f.NodeHealth), Unserved: f.Unserved.String()}
}

func nodesToProto(nodes []model.Node) (list []*ballastv1.Node) {
	for i := range nodes {
		list = append(list, NodeToProto(&nodes[i]))
	}
	return list
}

// NodeToProto returns one node as it is sent.
func NodeToProto(n *model.Node) *ballastv1.Node {
	return &ballastv1.Node{Name: n.Name, Tier: nameUnless(n.Tier, 0), Address: addressText(n.Address), Id: uint32(n.ID), State: n.State.String(), Bgp: bgpToProto(&n.BGP),
		L2: l2ToProto(&n.L2)}
}

// nodeHealthToProto returns nil for what is not given: there may be nobody to check.
func nodeHealthToProto(h *model.Health) *ballastv1.Health {
	if h.IsZero() {
		return nil
	}
	return HealthToProto(h)
}

// SetNodes takes what load balancers are sent of nodes, and of the fleet as a whole; see FleetFromProto.
func SetNodes(f *model.Fleet, m *ballastv1.Nodes) error {
	var in input
	f.Nodes, f.NodeHealth, f.Unserved = in.nodes(m.GetNodes()), model.Health{}, model.UnservedPass
	in.health("node_health", &f.NodeHealth, m.GetHealth())
	in.unserved(&f.Unserved, m.GetUnserved())
	return errors.Join(in...)
}

// NodeFromProto reads one node; see FleetFromProto.
func NodeFromProto(m *ballastv1.Node) (model.Node, error) {
	var in input
	n := in.node("nodes."+m.GetName(), m)
	return n, errors.Join(in...)
}

func (in *input) nodes(list []*ballastv1.Node) (nodes []model.Node) {
	for i, m := range list {
		nodes = append(nodes, in.node(fmt.Sprintf("nodes[%d]", i), m))
	}
	return nodes
}

func (in *input) node(path string, m *ballastv1.Node) model.Node {
	n := model.Node{Name: m.GetName(), ID: narrow[uint16](in, path+".id", m.GetId())}
	choose(in, path, "tier", &n.Tier, m.GetTier())
	in.address(path, "address", &n.Address, m.GetAddress())
	choose(in, path, "state", &n.State, m.GetState())
	in.bgp(path+".bgp", &n.BGP, m.GetBgp())
	in.l2(path+".l2", &n.L2, m.GetL2())
	return n
}

// l2ToProto returns nil for a load balancer that announces nothing on its segment.
func l2ToProto(l *model.L2) *ballastv1.L2 {
	if l.IsZero() {
		return nil
	}
	return &ballastv1.L2{Interface: l.Interface, AnnounceDelay: durationUnlessZero(l.Delay)}
}

func (in *input) l2(path string, l *model.L2, m *ballastv1.L2) {
	if m == nil {
		return
	}
	l.Interface = m.Interface
	in.positive(path+".announce_delay", &l.Delay, m.AnnounceDelay)
}

// unserved takes a choice of the whole fleet, which is in no section.
func (in *input) unserved(v *model.Unserved, text string) {
	var invalid *model.Invalid
	if text != "" && errors.As(v.UnmarshalText([]byte(text)), &invalid) {
		in.fail("unserved", invalid.Remedy, "%s", invalid.Problem)
	}
}

// ReplicasToProto returns nil for a fleet without.
func ReplicasToProto(r *model.Replicas) *ballastv1.Replicas {
	if *r == (model.Replicas{}) {
		return nil
	}
	return &ballastv1.Replicas{Chain: uint32(r.Chain), IdleTimeout: durationUnlessZero(r.IdleTimeout)}
}

func (in *input) replicas(path string, r *model.Replicas, m *ballastv1.Replicas) {
	takeNarrow(in, path+".chain", &r.Chain, m.GetChain())
	in.positive(path+".idle_timeout", &r.IdleTimeout, m.GetIdleTimeout())
}

func sourceLimitToProto(l *model.SourceLimit) *ballastv1.SourceLimit {
	if *l == (model.SourceLimit{}) {
		return nil
	}
	return &ballastv1.SourceLimit{Rate: l.Rate, Burst: l.Burst, Ipv4Prefix: uint32(l.IPv4Prefix), Ipv6Prefix: uint32(l.IPv6Prefix)}
}

func (in *input) sourceLimit(path string, l *model.SourceLimit, m *ballastv1.SourceLimit) {
	take(&l.Rate, m.GetRate())
	take(&l.Burst, m.GetBurst())
	takeNarrow(in, path+".ipv4_prefix", &l.IPv4Prefix, m.GetIpv4Prefix())
	takeNarrow(in, path+".ipv6_prefix", &l.IPv6Prefix, m.GetIpv6Prefix())
}

// tableToProto returns nil for a service that has no connection table.
func tableToProto(t *model.Table) *ballastv1.Table {
	if *t == (model.Table{}) {
		return nil
	}
	return &ballastv1.Table{Entries: t.Entries, IndexBits: uint32(t.IndexBits), NodeBits: proto.Uint32(uint32(t.NodeBits)),
		IdleTimeout: durationUnlessZero(t.IdleTimeout), PacketLimit: proto.Uint32(t.PacketLimit), Scrubber: proto.String(t.Scrubber)}
}

func (in *input) table(path string, t *model.Table, m *ballastv1.Table) {
	if m == nil {
		return
	}
	take(&t.Entries, m.Entries)
	takeNarrow(in, path+".index_bits", &t.IndexBits, m.IndexBits)
	if m.NodeBits != nil {
		t.NodeBits = narrow[uint8](in, path+".node_bits", *m.NodeBits)
	}
	in.positive(path+".idle_timeout", &t.IdleTimeout, m.IdleTimeout)
	if m.PacketLimit != nil {
		t.PacketLimit = *m.PacketLimit
	}
	if m.Scrubber != nil {
		t.Scrubber = *m.Scrubber
	}
}

// choicesToProto returns nil for a service that has another dispatch.
func choicesToProto(c *model.Choices) *ballastv1.Choices {
	if *c == (model.Choices{}) {
		return nil
	}
	return &ballastv1.Choices{Candidates: uint32(c.Candidates), History: uint32(c.History), Accept: &ballastv1.Accept{Policy: c.Accept.Policy.String(),
		Load: c.Accept.Load.String(), Threshold: c.Accept.Threshold, Window: uint32(c.Accept.Window), Margin: uint32(c.Accept.Margin)}}
}

func (in *input) choices(path string, c *model.Choices, m *ballastv1.Choices) {
	takeNarrow(in, path+".candidates", &c.Candidates, m.GetCandidates())
	takeNarrow(in, path+".history", &c.History, m.GetHistory())
	accept := m.GetAccept()
	path += ".accept"
	choose(in, path, "policy", &c.Accept.Policy, accept.GetPolicy())
	choose(in, path, "load", &c.Accept.Load, accept.GetLoad())
	take(&c.Accept.Threshold, accept.GetThreshold())
	takeNarrow(in, path+".window", &c.Accept.Window, accept.GetWindow())
	takeNarrow(in, path+".margin", &c.Accept.Margin, accept.GetMargin())
}

// quicToProto returns nil for a service that has another affinity.
func quicToProto(q *model.QUIC) *ballastv1.QUIC {
	if *q == (model.QUIC{}) {
		return nil
	}
	return &ballastv1.QUIC{Algorithm: q.Algorithm.String(), ServerIdLength: uint32(q.ServerIDLength), NonceLength: uint32(q.NonceLength)}
}

// mptcpToProto returns nil for a service without.
func mptcpToProto(m *model.MPTCP) *ballastv1.MPTCP {
	if *m == (model.MPTCP{}) {
		return nil
	}
	return &ballastv1.MPTCP{FirstPort: uint32(m.FirstPort), Ports: uint32(m.Ports)}
}

// prefixesToProto returns nil for none.
func prefixesToProto(list []netip.Prefix) *ballastv1.Prefixes {
	if len(list) == 0 {
		return nil
	}
	m := &ballastv1.Prefixes{}
	for _, prefix := range list {
		m.Prefixes = append(m.Prefixes, prefix.String())
	}
	return m
}

func (in *input) prefixes(path string, list *[]netip.Prefix, m *ballastv1.Prefixes) {
	if m == nil {
		return
	}
	*list = nil
	for i, text := range m.Prefixes {
		prefix, err := model.ParseSources(text)
		var invalid *model.Invalid
		if errors.As(err, &invalid) {
			in.fail(fmt.Sprintf("%s[%d]", path, i), invalid.Remedy, "%s", invalid.Problem)
		}
		*list = append(*list, prefix)
	}
}

func (in *input) quic(path string, q *model.QUIC, m *ballastv1.QUIC) {
	choose(in, path, "algorithm", &q.Algorithm, m.GetAlgorithm())
	takeNarrow(in, path+".server_id_length", &q.ServerIDLength, m.GetServerIdLength())
	takeNarrow(in, path+".nonce_length", &q.NonceLength, m.GetNonceLength())
}
