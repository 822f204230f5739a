package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

var policies = model.Dispatches()

var testIDs = []uint16{1, 2, 3, 17, 40, 90}

var testLimits = Limits{Services: 24, Servers: 64, ServerIDs: 4096, Slots: 1 << 13, Rounds: 1 << 12, Entries: 64 * 64}

func testKeys(epochs ...uint32) model.Keys {
	keys := model.Keys{Placement: [16]byte{1}, Cookie: map[uint32][16]byte{}}
	for _, epoch := range epochs {
		keys.Current = epoch
		keys.Cookie[epoch] = [16]byte{byte(epoch), 15: 1}
	}
	return keys
}

func testServer(id uint16) model.Server {
	return model.Server{Name: fmt.Sprint("s", id), ID: id, Weight: 1, Address: netip.AddrFrom4([4]byte{10, 1, byte(id >> 8), byte(id)})}
}

func testService(name string, vip netip.Addr, ids ...uint16) Service {
	s := model.NewService()
	s.Name, s.VIP, s.Ports, s.TableSlots = name, vip, []uint16{80}, 251
	s.Choices = model.Choices{Candidates: 3, History: 2} // should it come to them
	for _, id := range ids {
		s.Servers = append(s.Servers, testServer(id))
	}
	s.ApplyDefaults()
	return Service{Service: s}
}

func testPath(id uint16) Path {
	return Path{Ifindex: 1, Source: netip.AddrFrom4([4]byte{10, 1, 9, 9}), DestinationMAC: [6]byte{2, 0, 0, 0, byte(id >> 8), byte(id)}, MTU: 1500}
}

func testNode(id uint16) model.Node {
	return model.Node{Name: fmt.Sprint("n", id), Tier: model.TierSecond, ID: id, Address: netip.AddrFrom4([4]byte{10, 2, 0, byte(id)})}
}

// tableService is one whose connections have entries: cookies of 16 bits, 3 for the node, 6 for the index.
func tableService(name string, vip netip.Addr, entries uint32, ids ...uint16) Service {
	s := testService(name, vip, ids...)
	s.Affinity, s.CookieBits, s.Table = model.AffinityTable, model.MaxCookieBits, model.Table{Entries: entries, IndexBits: 6, NodeBits: 3}
	return s
}

// withPaths gives every server of the services and every node a way.
func withPaths(want *Want) *Want {
	want.Paths = map[netip.Addr]Path{}
	for _, s := range want.Services {
		for _, server := range append(s.Servers, s.Removed...) {
			want.Paths[server.Address] = testPath(server.ID)
		}
	}
	for _, node := range want.Tier.Second {
		want.Paths[node.Address] = testPath(node.ID)
	}
	return want
}

func vipAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}) }

// anyWant is a fleet of a few services, drawn so that fleets in a row have much in common.
func anyWant(t *rapid.T) *Want {
	want := &Want{Keys: testKeys(rapid.SampledFrom([][]uint32{{1}, {1, 2}, {2}}).Draw(t, "epochs")...)}
	for i := range rapid.IntRange(0, 3).Draw(t, "services") {
		if rapid.IntRange(0, 4).Draw(t, "skip") == 0 {
			continue
		}
		want.Services = append(want.Services, anyService(t, i))
	}
	want.Tier = anyTier(t)
	want.Replicas = anyReplicas(t)
	want.Rejects = rapid.Bool().Draw(t, "rejects")
	withPaths(want)
	for address, path := range want.Paths {
		switch rapid.IntRange(0, 9).Draw(t, "path") {
		case 0:
			want.Paths[address] = Path{}
		case 1:
			path.VLAN = 5
			want.Paths[address] = path
		}
	}
	return want
}

func anyService(t *rapid.T, i int) Service {
	vip := vipAt(i)
	if rapid.IntRange(0, 5).Draw(t, "moved") == 0 {
		vip = vipAt(i + 100)
	}
	s := testService(fmt.Sprint("service", i), vip)
	s.Ports = rapid.SampledFrom([][]uint16{{80}, {80, 443}, {443}}).Draw(t, "ports")
	s.Dispatch = rapid.SampledFrom(policies).Draw(t, "dispatch")
	s.Load.Classes = rapid.SampledFrom([]uint8{0, 1, 2, 4, model.MaxClasses}).Draw(t, "classes")
	if rapid.Bool().Draw(t, "through") {
		s.Return, s.Forward, s.Fallback, s.CookieBits = model.ReturnThrough, model.ForwardNAT, model.FallbackHash, model.ThroughBits
	} else if rapid.Bool().Draw(t, "table") {
		s.Affinity, s.CookieBits, s.Table = model.AffinityTable, model.MaxCookieBits, anyTable(t)
	} else if rapid.Bool().Draw(t, "mptcp") {
		s.MPTCP = model.MPTCP{FirstPort: rapid.SampledFrom([]uint16{1000, 1020, 40000}).Draw(t, "first"), Ports: rapid.SampledFrom([]uint16{90, 1024}).Draw(t, "joins")}
	}
	if s.Return == model.ReturnDirect {
		further := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(1 + i)})
		s.MoreVIPs = rapid.SampledFrom([][]netip.Addr{nil, {further}, {vipAt(i + 50)}, {vipAt(i + 50), further}}).Draw(t, "vips")
		if len(s.MoreVIPs) > 0 && rapid.Bool().Draw(t, "swapped") {
			s.VIP, s.MoreVIPs[0] = s.MoreVIPs[0], s.VIP
		}
		s.PortRanges = rapid.SampledFrom([][]model.PortRange{nil, {{First: 100, Last: 200}}, {{First: 100, Last: 150}, {First: 180, Last: 300}}}).Draw(t, "ranges")
	}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom(testIDs), 0, 6, rapid.ID).Draw(t, "ids") {
		server := testServer(id)
		server.Address = netip.AddrFrom4([4]byte{10, byte(i), 0, byte(id)})
		server.Weight = rapid.Uint16Range(0, 3).Draw(t, "weight")
		server.State = rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateActive, model.StateActive, model.StateDraining, model.StateOff}).Draw(t, "state")
		if rapid.IntRange(0, 4).Draw(t, "removed") == 0 {
			s.Removed = append(s.Removed, server)
		} else {
			s.Servers = append(s.Servers, server)
		}
	}
	for _, text := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32"}), 0, 3, rapid.ID).Draw(t, "allow") {
		s.Allow = append(s.Allow, netip.MustParsePrefix(text))
	}
	if rapid.Bool().Draw(t, "limited sources") {
		s.SourceLimit = model.SourceLimit{Rate: rapid.Uint32Range(1, 3).Draw(t, "rate"), Burst: rapid.Uint32Range(1, 3).Draw(t, "burst"), IPv4Prefix: 24, IPv6Prefix: 56}
	}
	s.Weights = anyWeights(t)
	s.Starting = anyStarting(t)
	if s.Dispatch.Placed() && s.Dispatch != model.DispatchChoices && rapid.Bool().Draw(t, "by source") {
		s.Placement = model.Placement{Over: model.PlaceSource, IPv4Prefix: rapid.Uint8Range(1, 32).Draw(t, "IPv4 prefix"), IPv6Prefix: rapid.Uint8Range(1, 128).Draw(t, "IPv6 prefix")}
	}
	s.Down = map[uint16]bool{}
	for _, id := range rapid.SliceOfN(rapid.SampledFrom(testIDs), 0, 2).Draw(t, "down") {
		s.Down[id] = true
	}
	return s
}

func anyStarting(t *rapid.T) slowstart.Parts {
	parts := slowstart.Parts{}
	for _, id := range rapid.SliceOfN(rapid.SampledFrom(testIDs), 0, 3).Draw(t, "starting") {
		parts[id] = slowstart.Part{Tenths: rapid.Uint8Range(1, slowstart.Whole-1).Draw(t, "tenths"), Tick: rapid.Uint64Range(0, 20).Draw(t, "tick")}
	}
	return parts
}

func anyTable(t *rapid.T) model.Table {
	return model.Table{Entries: rapid.SampledFrom([]uint32{64, 100, 256}).Draw(t, "entries"), IndexBits: rapid.Uint8Range(4, 6).Draw(t, "index bits"),
		NodeBits: 2, PacketLimit: rapid.SampledFrom([]uint32{0, 100}).Draw(t, "limit"), Scrubber: rapid.SampledFrom([]string{"", "s1", "s17"}).Draw(t, "scrubber")}
}

// anyTier is one tier, the second, or the first with some nodes whose ids servers have, too.
func anyTier(t *rapid.T) Tier {
	tier := Tier{Tier: rapid.SampledFrom([]model.Tier{0, 0, model.TierFirst, model.TierSecond}).Draw(t, "tier"), ID: 1}
	if tier.Tier != model.TierFirst {
		return tier
	}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]uint16{1, 2, 3}), 0, 3, rapid.ID).Draw(t, "nodes") {
		node := testNode(id)
		node.State = rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateActive, model.StateDraining, model.StateOff}).Draw(t, "node state")
		tier.Second = append(tier.Second, node)
	}
	tier.Down = map[uint16]bool{rapid.SampledFrom([]uint16{0, 1, 2}).Draw(t, "node down"): true}
	return tier
}

// anyReplicas are load balancers, this one among them or not.
func anyReplicas(t *rapid.T) Replicas {
	r := Replicas{Self: rapid.Uint16Range(0, 3).Draw(t, "self"), Nodes: map[uint16]netip.Addr{}}
	for _, number := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 4), 0, 4, rapid.ID).Draw(t, "replicas") {
		r.Nodes[number] = netip.AddrFrom4([4]byte{10, 3, 0, byte(number)})
	}
	return r
}

// anyWeights are soft weights, also of servers that there are not, or none.
func anyWeights(t *rapid.T) map[uint16]uint16 {
	if rapid.IntRange(0, 4).Draw(t, "weighed") == 0 {
		return nil
	}
	return rapid.MapOfN(rapid.SampledFrom(testIDs), rapid.Uint16Range(0, 6), 0, len(testIDs)).Draw(t, "weights")
}

// node is tables with the memory that their changes are carried out on.
type node struct {
	testing.TB
	tables *Tables
	memory *memory
}

func newNode(t testing.TB) *node { return &node{t, NewTables(testLimits), newMemory()} }

// update carries out what leads to want.
func (n *node) update(want *Want) []Change {
	n.Helper()
	changes, err := n.tables.Update(want)
	if err != nil {
		n.Fatal(err)
	}
	for _, change := range changes {
		n.memory.apply(change)
	}
	return changes
}
