package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// replicaVIP is the service of replicated connections.
var replicaVIP = netip.MustParseAddr("198.51.100.1")

// replicaHops is more than any message makes.
const replicaHops = 8

// replicaRig is a switch with load balancers, each in a namespace of its own and connected by a pair of veth devices.
type replicaRig struct {
	programs *wrapper.Wrapper
	verdicts []string
	hub      *netspace.Space
	ports    []*net.Interface
	nodes    []*replicaNode
	cell     wrapper.Cell
	version  uint32
	view     lb.ReplicaView
	next     uint32 // the first flow that no packet has had yet
	k0, k1   uint64 // of the keys of connections
	counted  map[string]uint64
	carried  map[int]float64 // ns for a packet, by packets of a connection, of what chains of one carry
}

// replicaNode is a load balancer; its number is one more than its index.
type replicaNode struct {
	space *netspace.Space
	lb    *lb.LB
	place plan.Place
}

func nodeAddress(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, byte(number)}) }

// nodeMAC leads to a port of the switch (deliver in bpf/bench.bpf.c).
func nodeMAC(number int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(number)} }

func openReplicaRig() (r *replicaRig, err error) {
	r = &replicaRig{counted: map[string]uint64{}, carried: map[int]float64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.programs, err = wrapper.Open(); err != nil {
		return r, err
	}
	if r.verdicts, err = lb.VerdictNames(); err != nil {
		return r, err
	}
	if r.hub, err = quietSpace(); err != nil {
		return r, err
	}
	fleet := replicaService()
	r.k0, r.k1 = plan.EntryKey(fleet.Keys.Placement)
	r.cell = replicaFrame()
	for number := 1; number <= maxNodes; number++ {
		if err := r.connect(number, fleet); err != nil {
			return r, fmt.Errorf("set up load balancer %d: %w", number, err)
		}
	}
	return r, nil
}

// quietSpace is a namespace in which nobody speaks but us.
func quietSpace() (*netspace.Space, error) {
	space, err := netspace.CreateUnnamed()
	if err != nil {
		return nil, err
	}
	if err := space.Sysctl("net.ipv6.conf.default.disable_ipv6", "1"); err != nil {
		space.Close()
		return nil, err
	}
	return space, nil
}

func (r *replicaRig) connect(number int, fleet *model.Fleet) (err error) {
	node := &replicaNode{}
	if node.space, err = quietSpace(); err != nil {
		return err
	}
	r.nodes = append(r.nodes, node)
	port := fmt.Sprint("port", number)
	err = netspace.Connect(netspace.End{Space: r.hub, Interface: port, MTU: 1500}, netspace.End{Space: node.space, Interface: testedDevice, MTU: 1500})
	if err != nil {
		return err
	}
	var device *net.Interface
	err = node.space.Do(func() (err error) {
		device, err = readdress(testedDevice, nodeMAC(number))
		return err
	})
	if err != nil {
		return err
	}
	err = r.hub.Do(func() error {
		end, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		r.ports = append(r.ports, end)
		return r.programs.Port(uint32(number), end.Index)
	})
	if err == nil {
		err = r.hub.AttachXDP(port, r.programs.Deliver().FD())
	}
	if err == nil {
		err = node.open(number, uint32(device.Index), fleet)
	}
	if err == nil {
		err = node.lb.Know(device)
	}
	if err != nil {
		return err
	}
	return node.space.AttachXDP(testedDevice, node.lb.Program().FD())
}

// open makes a node serve the fleet, and speak to all others.
func (n *replicaNode) open(number int, device uint32, fleet *model.Fleet) (err error) {
	limits := tableLimits(1)
	limits.Replicated = 1 << 20
	if n.lb, err = lb.Open("", limits); err != nil {
		return err
	}
	want := wantOf(fleet, device)
	want.Replicas = plan.Replicas{Self: uint16(number), Nodes: map[uint16]netip.Addr{}}
	for address, path := range want.Paths {
		path.SourceMAC = [6]byte(nodeMAC(number))
		want.Paths[address] = path
	}
	for other := 1; other <= maxNodes; other++ {
		want.Replicas.Nodes[uint16(other)] = nodeAddress(other)
		want.Paths[nodeAddress(other)] = plan.Path{Ifindex: device, Source: nodeAddress(number), SourceMAC: [6]byte(nodeMAC(number)),
			DestinationMAC: [6]byte(nodeMAC(other)), MTU: 1500}
	}
	places, err := apply(n.lb, limits, want)
	n.place = places[replicaVIP.String()]
	n.lb.SetRing(true)
	return err
}

func (r *replicaRig) close() error {
	var errs []error
	for _, node := range r.nodes {
		if node.lb != nil {
			errs = append(errs, node.lb.Close())
		}
		node.space.Close()
	}
	if r.hub != nil {
		r.hub.Close()
	}
	if r.programs != nil {
		errs = append(errs, r.programs.Close())
	}
	return errors.Join(errs...)
}

// ring puts the first load balancers on a ring of even distances, with no entries. Flows come anew.
func (r *replicaRig) ring(nodes, length int) error {
	r.version++
	var numbers []uint16
	for number := range nodes {
		numbers = append(numbers, uint16(1+number))
	}
	r.view = lb.ReplicaView{Version: r.version, HopLimit: replicaHops, List: ring.Even(numbers, r.version)}
	for arc := range r.view.List {
		var chain []uint16
		for _, member := range (ring.Chains{Length: length}).OfArc(r.view.List, arc) {
			chain = append(chain, member.Node)
		}
		r.view.Chains, r.view.Since = append(r.view.Chains, chain), append(r.view.Since, r.version)
	}
	for _, node := range r.nodes {
		if err := node.lb.PublishView(&r.view); err != nil {
			return err
		}
	}
	return r.forget()
}

// forget empties all tables, and takes note of what was counted.
func (r *replicaRig) forget() error {
	for _, node := range r.nodes {
		entries, answers := node.lb.ReplicaTables()
		for _, table := range []*replicas.Table{entries, answers} {
			if _, err := table.Keep(func(replicas.Entry) bool { return false }, nil); err != nil {
				return err
			}
		}
	}
	var err error
	r.counted, err = r.counters()
	return err
}

// counters are the verdicts of all load balancers together, by name.
func (r *replicaRig) counters() (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, node := range r.nodes {
		for _, place := range []plan.Place{node.place, {}} {
			traffic, err := node.lb.VerdictTraffic(place)
			if err != nil {
				return nil, err
			}
			for verdict, t := range traffic {
				all[r.verdicts[verdict]] += t.Packets
			}
		}
	}
	return all, nil
}

// wanted are packets by what should have become of them.
type wanted struct {
	first  uint64 // forwarded as the first of a connection
	known  uint64 // forwarded by what the load balancer knew
	asked  uint64 // sent to another load balancer, in a question
	passed uint64 // sent on by that
}

// check fails unless all packets since the ring was made, or forget, went the way that is measured.
func (r *replicaRig) check(want wanted) error {
	now, err := r.counters()
	if err != nil {
		return err
	}
	for name, packets := range now {
		wanted := map[string]uint64{"forwarded_new": want.first, "forwarded_by_replica": want.known, "asked_peer": want.asked, "passed_on_to_peer": want.passed}[name]
		if got := packets - r.counted[name]; got != wanted {
			return fmt.Errorf("%d packets were %s, want %d", got, name, wanted)
		}
	}
	return nil
}

// chain is that of a flow, head first.
func (r *replicaRig) chain(flow uint32) []uint16 {
	return r.view.Chains[r.view.List.Arc(ring.Key(replicaKey(r.k0, r.k1, flow)).Position())]
}

// forwarder is the load balancer, of so many, that the switch sends a flow's packets to.
func forwarder(flow, nodes uint32) uint16 {
	return uint16(1 + uint32(wrapper.Client(flow).Port())%nodes)
}

// messages is how many a flow's first packet takes, of the load balancer that the switch sends it to: to each of the chain but that itself, and from the
// tail to it.
func (r *replicaRig) messages(flow, nodes uint32) (n int) {
	forwarder := forwarder(flow, nodes)
	at := forwarder
	for _, member := range append(append([]uint16{}, r.chain(flow)...), forwarder) {
		if member != at {
			n, at = n+1, member
		}
	}
	return n
}

// fresh are flows that no packet has had yet; after all of them they come again.
func (r *replicaRig) fresh(count uint32) []uint32 {
	flows := sequence(r.next, count)
	for i := range flows {
		flows[i] %= MaxFlows
	}
	r.next += count
	return flows
}

// elsewhere are fresh flows whose packets the switch sends, of so many load balancers, to one that is not in their chain.
func (r *replicaRig) elsewhere(count, nodes uint32) (flows []uint32) {
	for uint32(len(flows)) < count {
		if flow := r.fresh(1)[0]; !slices.Contains(r.chain(flow), forwarder(flow, nodes)) {
			flows = append(flows, flow)
		}
	}
	return flows
}

// cross sends a packet of each of the flows through the switch, and fails unless all arrive as they should.
func (r *replicaRig) cross(flows []uint32, pace wrapper.Pace) (c wrapper.Crossing, err error) {
	if err := r.programs.List(&r.cell, flows, nil); err != nil {
		return c, err
	}
	err = r.hub.Do(func() (err error) { // on a thread of its own
		c, err = r.programs.CrossSwitch(r.ports[0].Index, uint32(len(flows)), pace)
		return err
	})
	if err == nil && (c.Sent != uint64(len(flows)) || c.Arrived != c.Sent || c.Unexpected != 0) {
		err = fmt.Errorf("%d of %d packets came to servers, %d of them of another length than expected", c.Arrived, c.Sent, c.Unexpected)
	}
	return c, err
}
