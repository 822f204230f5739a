package model

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fleet returns a valid fleet of one cookie service with the given number of servers, before defaults are applied.
func fleet(servers int) Fleet {
	web := NewService()
	web.Name, web.VIP, web.Ports = "web", netip.MustParseAddr("198.51.100.10"), []uint16{80, 443}
	for i := range servers {
		server := NewServer()
		server.Address = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		server.ID = uint16(i + 1)
		web.Servers = append(web.Servers, server)
	}
	return Fleet{
		Keys:     Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}},
		Services: []Service{web},
	}
}

// tiers returns a node of the first and two of the second tier.
func tiers() []Node {
	return []Node{{Name: "lb1", Tier: TierFirst}, {Name: "lb2", Tier: TierSecond, Address: netip.MustParseAddr("192.0.2.2"), ID: 1},
		{Name: "lb3", Tier: TierSecond, Address: netip.MustParseAddr("192.0.2.3"), ID: 2}}
}

// problems returns the findings of Validate.
func problems(t *testing.T, f Fleet) []*Invalid {
	t.Helper()
	err := f.Validate()
	if err == nil {
		return nil
	}
	var found []*Invalid
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		found = append(found, e.(*Invalid))
	}
	return found
}

func TestDefaultsMakeAMinimalFleetValid(t *testing.T) {
	f := fleet(2)
	f.Keys.Current = 0
	f.ApplyDefaults()
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	s := f.Services[0]
	if s.Protocol != ProtocolTCP || s.Dispatch != DispatchRR || s.Affinity != AffinityCookie || s.Fallback != FallbackSecondChance ||
		s.Forward != ForwardIPIP || s.Return != ReturnDirect || s.CookieBits != 14 || s.TableSlots != 4093 {
		t.Errorf("unexpected defaults: %+v", s)
	}
	if got := s.Servers[0]; got.Name != "10.1.0.0" || got.Weight != 1 || got.State != StateActive {
		t.Errorf("unexpected defaults: %+v", got)
	}
	if f.Keys.Current != 1 {
		t.Errorf("the only epoch did not become current: %d", f.Keys.Current)
	}
}

func TestDefaultsFollowProtocolAndReturn(t *testing.T) {
	udp, through := NewService(), NewService()
	udp.Protocol, through.Return = ProtocolUDP, ReturnThrough
	udp.ApplyDefaults()
	through.ApplyDefaults()
	if udp.Affinity != AffinityHash || udp.Dispatch != DispatchMaglev || udp.Fallback != FallbackHash || udp.Forward != ForwardIPIP {
		t.Errorf("udp: %+v", udp)
	}
	if through.Affinity != AffinityCookie || through.Forward != ForwardNAT || through.CookieBits != 8 || through.Fallback != FallbackHash {
		t.Errorf("through: %+v", through)
	}
}

func TestDefaultsKeepExplicitChoices(t *testing.T) {
	f := fleet(1)
	f.Services[0].Dispatch, f.Services[0].Affinity = DispatchHash, AffinityHash
	f.Services[0].Fallback, f.Services[0].Forward = FallbackHash, ForwardL2
	f.Services[0].Servers[0].Weight = 0
	f.ApplyDefaults()
	s := f.Services[0]
	if s.Dispatch != DispatchHash || s.Affinity != AffinityHash || s.Fallback != FallbackHash || s.Forward != ForwardL2 || s.Servers[0].Weight != 0 {
		t.Errorf("explicit choices were overwritten: %+v", s)
	}
}

func TestServersOfHashServicesGetIDsByPositionAroundExplicitOnes(t *testing.T) {
	f := fleet(4)
	f.Services[0].Affinity = AffinityHash
	for i, id := range []uint16{0, 1, 0, 3} {
		f.Services[0].Servers[i].ID = id
	}
	f.ApplyDefaults()
	var ids []uint16
	for _, server := range f.Services[0].Servers {
		ids = append(ids, server.ID)
	}
	if fmt.Sprint(ids) != "[2 1 4 3]" {
		t.Errorf("ids %v", ids)
	}
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

// contradiction is what a fleet of three servers and two tiers must not say.
type contradiction struct {
	name   string
	change func(*Fleet)
	path   string // of one of the findings
	text   string // part of that finding
}

func TestEveryContradictionIsRefusedWithPathAndRemedy(t *testing.T) {
	expectRefused(t, []contradiction{
		{"nat without through", func(f *Fleet) { f.Services[0].Forward = ForwardNAT }, "services[0].forward", "return: through"},
		{"through with ipip", func(f *Fleet) { f.Services[0].Return, f.Services[0].Forward = ReturnThrough, ForwardIPIP }, "services[0].forward", "nat or l2"},
		{"through with gue", func(f *Fleet) { f.Services[0].Return, f.Services[0].Forward = ReturnThrough, ForwardGUE }, "services[0].forward", "nat or l2"},
		{"hash affinity with rr", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Dispatch = AffinityHash, DispatchRR }, "services[0].dispatch", "maglev, hash or wcmp"},
		{"cookie on udp", func(f *Fleet) { f.Services[0].Protocol, f.Services[0].Affinity = ProtocolUDP, AffinityCookie }, "services[0].affinity", "affinity: quic"},
		{"second chance on udp", func(f *Fleet) { f.Services[0].Protocol, f.Services[0].Fallback = ProtocolUDP, FallbackSecondChance }, "services[0].fallback", "fallback: hash"},
		{"second chance with through", func(f *Fleet) { f.Services[0].Return, f.Services[0].Fallback = ReturnThrough, FallbackSecondChance }, "services[0].fallback", "fallback: hash"},
		{"wide cookie with through", func(f *Fleet) { f.Services[0].Return, f.Services[0].CookieBits = ReturnThrough, 14 }, "services[0].cookie_bits", "use 8"},
		{"cookie too narrow", func(f *Fleet) { f.Services[0].CookieBits = 7 }, "services[0].cookie_bits", "8 to 16"},
		{"cookie too wide", func(f *Fleet) { f.Services[0].CookieBits = 17 }, "services[0].cookie_bits", "8 to 16"},
		{"table size not offered", func(f *Fleet) { f.Services[0].TableSlots = 4096 }, "services[0].table_slots", "4093"},
		{"no ports", func(f *Fleet) { f.Services[0].Ports = nil }, "services[0].ports", "1 to 16"},
		{"too many ports", func(f *Fleet) { f.Services[0].Ports = make([]uint16, 17) }, "services[0].ports", "1 to 16"},
		{"port zero", func(f *Fleet) { f.Services[0].Ports = []uint16{0} }, "services[0].ports[0]", "not a port"},
		{"port twice", func(f *Fleet) { f.Services[0].Ports = []uint16{80, 80} }, "services[0].ports[1]", "twice"},
		{"id missing", func(f *Fleet) { f.Services[0].Servers[1].ID = 0 }, "services[0].servers[1].id", "next free id is 4"},
		{"id duplicate", func(f *Fleet) { f.Services[0].Servers[1].ID = 1 }, "services[0].servers[1].id", "next free id is 4"},
		{"id out of range", func(f *Fleet) { f.Services[0].Servers[2].ID = 8192 }, "services[0].servers[2].id", "next free id is 3"},
		{"id out of range of narrow cookies", func(f *Fleet) { f.Services[0].CookieBits, f.Services[0].Servers[2].ID = 8, 128 }, "services[0].servers[2].id", "1-127"},
		{"weight too large", func(f *Fleet) { f.Services[0].Servers[0].Weight = 257 }, "services[0].servers[0].weight", "0 to 256"},
		{"port without nat", func(f *Fleet) { f.Services[0].Servers[0].Port = 8080 }, "services[0].servers[0].port", "only nat"},
		{"server name twice", func(f *Fleet) { f.Services[0].Servers[0].Name, f.Services[0].Servers[1].Name = "a", "a" }, "services[0].servers[1].name", "another name"},
		{"server name with a slash", func(f *Fleet) { f.Services[0].Servers[0].Name = "../a" }, "services[0].servers[0].name", "letters"},
		{"server address twice", func(f *Fleet) { f.Services[0].Servers[1].Address = f.Services[0].Servers[0].Address }, "services[0].servers[1].address", "server 10.1.0.0"},
		{"server address missing", func(f *Fleet) { f.Services[0].Servers[1].Address = netip.Addr{} }, "services[0].servers[1].address", "IPv4 or IPv6"},
		{"server is a vip", func(f *Fleet) { f.Services[0].Servers[1].Address = f.Services[0].VIP }, "services[0].servers[1].address", "loop"},
		{"nat across families", func(f *Fleet) {
			f.Services[0].Return, f.Services[0].Servers[0].Address = ReturnThrough, netip.MustParseAddr("2001:db8::1")
		}, "services[0].servers[0].address", "family"},
		{"nat port with two service ports", func(f *Fleet) { f.Services[0].Return, f.Services[0].Servers[0].Port = ReturnThrough, 8080 }, "services[0].servers[0].port", "one service per port"},
		{"vip missing", func(f *Fleet) { f.Services[0].VIP = netip.Addr{} }, "services[0].vip", "IPv4 or IPv6"},
		{"vip multicast", func(f *Fleet) { f.Services[0].VIP = netip.MustParseAddr("224.0.0.1") }, "services[0].vip", "unicast"},
		{"vip link-local", func(f *Fleet) { f.Services[0].VIP = netip.MustParseAddr("169.254.1.1") }, "services[0].vip", "link-local"},
		{"vip mapped", func(f *Fleet) { f.Services[0].VIP = netip.MustParseAddr("::ffff:1.2.3.4") }, "services[0].vip", "write 1.2.3.4"},
		{"service name missing", func(f *Fleet) { f.Services[0].Name = "" }, "services[0].name", "give it a name"},
		{"service name twice", func(f *Fleet) { f.Services = append(f.Services, f.Services[0]) }, "services[1].name", "services[0]"},
		{"same listener twice", func(f *Fleet) {
			other := f.Services[0].Clone()
			other.Name, other.Ports = "other", []uint16{8080, 443}
			f.Services = append(f.Services, other)
		}, "services[1].ports[1]", "web"},
		{"same nat server in two services", func(f *Fleet) {
			f.Services[0].Return = ReturnThrough
			other := f.Services[0].Clone()
			other.Name, other.VIP = "other", netip.MustParseAddr("198.51.100.11")
			f.Services = append(f.Services, other)
		}, "services[1].servers[0].address", "10.1.0.0:80"},
		{"too many services", func(f *Fleet) { f.Services = make([]Service, 4097) }, "services", "4096"},
		{"no placement key", func(f *Fleet) { f.Keys.Placement = [16]byte{} }, "keys.placement", "ballast ctl key generate"},
		{"no cookie key", func(f *Fleet) { f.Keys.Cookie, f.Keys.Current = nil, 0 }, "keys.cookie", "ballast ctl key generate"},
		{"zero cookie key", func(f *Fleet) { f.Keys.Cookie[1] = [16]byte{} }, "keys.cookie.1", "zeros"},
		{"three epochs", func(f *Fleet) { f.Keys.Cookie[2], f.Keys.Cookie[3] = [16]byte{3}, [16]byte{4} }, "keys.cookie", "only two"},
		{"epochs apart", func(f *Fleet) { f.Keys.Cookie[3] = [16]byte{3} }, "keys.cookie", "name the newer one 2"},
		{"two epochs with one key", func(f *Fleet) { f.Keys.Cookie[2] = f.Keys.Cookie[1] }, "keys.cookie", "same key"},
		{"epoch zero", func(f *Fleet) { f.Keys.Cookie[0] = [16]byte{3} }, "keys.cookie.0", "start at 1"},
		{"current without key", func(f *Fleet) { f.Keys.Current = 2 }, "keys.current", "use 1"},
		{"classes too many", func(f *Fleet) { f.Services[0].Load.Classes = 17 }, "services[0].load.classes", "0 to 16"},
		{"load too often", func(f *Fleet) { f.Services[0].Load.Interval = Duration(time.Millisecond) }, "services[0].load.interval", "10ms"},
		{"endpoint unused", func(f *Fleet) {
			f.Services[0].Load.Source, f.Services[0].Load.Endpoint = LoadCPU, "http://:1/"
		}, "services[0].load.endpoint", "source: endpoint"},
		{"endpoint missing", func(f *Fleet) { f.Services[0].Load.Source = LoadEndpoint }, "services[0].load.endpoint", "http://"},
		{"check without command", func(f *Fleet) { f.Services[0].Health.Check = CheckExec }, "services[0].health.command", "runs a program"},
		{"path without http", func(f *Fleet) { f.Services[0].Health.Path = "/x" }, "services[0].health.path", "no use"},
		{"timeout above interval", func(f *Fleet) {
			f.Services[0].Health.Interval, f.Services[0].Health.Timeout = Duration(time.Second), Duration(2*time.Second)
		}, "services[0].health.timeout", "1s"},
		{"deadline of an active server", func(f *Fleet) { f.Services[0].Servers[0].Deadline = time.Unix(1, 0) }, "services[0].servers[0].deadline", "draining"},
		{"cookie on udp by way of a table", func(f *Fleet) { f.Services[0].Protocol, f.Services[0].Affinity = ProtocolUDP, AffinityTable }, "services[0].affinity", "local-table"},
		{"table with through", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Return = AffinityTable, ReturnThrough }, "services[0].affinity", "return: direct"},
		{"table of a cookie service", func(f *Fleet) { f.Services[0].Table.PacketLimit = 5 }, "services[0].table", "affinity: table"},
		{"table too small", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Table.Entries = AffinityTable, 63 }, "services[0].table.entries", "64 to 1073741824"},
		{"table too large", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Table.Entries = AffinityTable, 1<<30+1 }, "services[0].table.entries", "64 to 1073741824"},
		{"index too wide", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Table.IndexBits = AffinityTable, 7 }, "services[0].table.index_bits", "1 to 6"},
		{"node too wide", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.NodeBits, f.Services[0].CookieBits = AffinityTable, 9, 16
		}, "services[0].table.node_bits", "to 8"},
		{"no room for ids", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.NodeBits, f.Services[0].CookieBits = AffinityTable, 4, 11
		},
			"services[0].cookie_bits", "up to 16, or smaller table.index_bits"},
		{"idle too short", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.IdleTimeout = AffinityTable, Duration(time.Millisecond)
		}, "services[0].table.idle_timeout", "1s"},
		{"limit too high", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Table.PacketLimit = AffinityTable, 60001 }, "services[0].table.packet_limit", "to 60000"},
		{"scrubber unknown", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Table.Scrubber = AffinityTable, "x" }, "services[0].table.scrubber", "weight 0"},
		{"scrubber with connections of its own", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.Scrubber = AffinityTable, "10.1.0.1"
		}, "services[0].table.scrubber", "weight 1"},
		{"scrubber without agents", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.Scrubber, f.Services[0].Fallback = AffinityTable, "10.1.0.1", FallbackHash
		}, "services[0].table.scrubber", "fallback: second-chance"},
		{"scrubber of another family", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.Scrubber = AffinityTable, "wash"
			f.Services[0].Servers[2] = Server{Name: "wash", ID: 9, Address: netip.MustParseAddr("fd00::3")}
		}, "services[0].table.scrubber", "name a server of their family"},
		{"scrubber of the family of some servers", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.Scrubber = AffinityTable, "10.1.0.2"
			f.Services[0].Servers[2].Weight, f.Services[0].Servers[1].Address = 0, netip.MustParseAddr("fd00::2")
		}, "services[0].table.scrubber", "to server fd00::2 (IPv6)"},
		{"local table without an id", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Servers[2].ID = AffinityLocal, 0 },
			"services[0].servers[2].id", "the next free id is 3"},
		{"id out of range of a table's cookies", func(f *Fleet) { f.Services[0].Affinity, f.Services[0].Servers[2].ID = AffinityTable, 128 },
			"services[0].servers[2].id", "128 is out of range 1-63 of 16 cookie bits less 9 of the table"},
		{"more servers than a table's cookies have ids", func(f *Fleet) {
			f.Services[0].Affinity, f.Services[0].Table.IndexBits, f.Services[0].CookieBits = AffinityTable, 6, 11
		}, "services[0].servers[2].id", "up to 16) or smaller table.index_bits"},
		{"node without a name", func(f *Fleet) { f.Nodes[0].Name = "" }, "nodes[0].name", "give it a name"},
		{"node name twice", func(f *Fleet) { f.Nodes[2].Name = "lb1" }, "nodes[2].name", "nodes[0]"},
		{"node without a tier", func(f *Fleet) { f.Nodes[0].Tier = 0 }, "nodes[0].tier", "first, second"},
		{"node of a third tier", func(f *Fleet) { f.Nodes[0].Tier = 3 }, "nodes[0].tier", "first, second"},
		{"first tier with an address", func(f *Fleet) { f.Nodes[0].Address = f.Nodes[1].Address }, "nodes[0].address", "tier: second"},
		{"first tier with an id", func(f *Fleet) { f.Nodes[0].ID = 5 }, "nodes[0].id", "tier: second"},
		{"first tier with a state", func(f *Fleet) { f.Nodes[0].State = StateDraining }, "nodes[0].state", "remove it"},
		{"second tier without an address", func(f *Fleet) { f.Nodes[1].Address = netip.Addr{} }, "nodes[1].address", "IPv4 or IPv6"},
		{"second tier at a vip", func(f *Fleet) { f.Nodes[1].Address = f.Services[0].VIP }, "nodes[1].address", "vip of service web"},
		{"second tier at a server", func(f *Fleet) { f.Nodes[1].Address = f.Services[0].Servers[0].Address }, "nodes[1].address", "server 10.1.0.0 of service web"},
		{"node address twice", func(f *Fleet) { f.Nodes[2].Address = f.Nodes[1].Address }, "nodes[2].address", "node lb2"},
		{"second tier without an id", func(f *Fleet) { f.Nodes[1].ID = 0 }, "nodes[1].id", "next free id is 3"},
		{"node id twice", func(f *Fleet) { f.Nodes[2].ID = 1 }, "nodes[2].id", "1 is the id of node lb2"},
		{"node id out of range", func(f *Fleet) { f.Nodes[2].ID = 256 }, "nodes[2].id", "1-255"},
		{"node id out of range of a service", func(f *Fleet) { f.Services[0].Affinity, f.Nodes[2].ID = AffinityTable, 8 }, "nodes[2].id", "1-7 of service web"},
		{"nobody of the second tier to check", func(f *Fleet) { f.Nodes, f.NodeHealth.Check = f.Nodes[:1], CheckTCP }, "node_health", "remove it"},
		{"check of nodes without a port", func(f *Fleet) { f.NodeHealth.Check = CheckTCP }, "node_health.port", "--metrics"},
		{"check of nodes with a deadline", func(f *Fleet) { f.NodeHealth.Deadline = 1 }, "node_health.deadline", "at once"},
		{"too many nodes", func(f *Fleet) { f.Nodes = make([]Node, MaxNodes+1) }, "nodes", "1024"},
		{"tunnels from anywhere", func(f *Fleet) { f.TunnelsFrom = []netip.Addr{netip.IPv6Unspecified()} }, "tunnels_from[0]", "address of a host"},
		{"unserved", func(f *Fleet) { f.Unserved = 9 }, "unserved", "use one of pass, reject"},
		{"tunnels from everybody", func(f *Fleet) { f.TunnelsFrom = []netip.Addr{netip.MustParseAddr("224.0.0.1")} }, "tunnels_from[0]", "address of a host"},
		{"tunnels from one twice", func(f *Fleet) {
			f.TunnelsFrom = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.1")}
		}, "tunnels_from[1]", "remove it"},
		{"tunnels from too many", func(f *Fleet) { f.TunnelsFrom = make([]netip.Addr, MaxTunnelSources+1) }, "tunnels_from", "at most"},
		{"state unknown", func(f *Fleet) { f.Services[0].Servers[0].State = 9 }, "services[0].servers[0].state", "active, draining, off"},
	})
}

func expectRefused(t *testing.T, cases []contradiction) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := fleet(3)
			f.Nodes = tiers()
			c.change(&f)
			f.ApplyDefaults()
			for _, found := range problems(t, f) {
				if found.Remedy == "" || found.Problem == "" {
					t.Errorf("incomplete: %+v", found)
				}
				if found.Path == c.path && strings.Contains(found.Error(), c.text) {
					return
				}
			}
			t.Errorf("want %s: ...%s..., have:\n%v", c.path, c.text, f.Validate())
		})
	}
}

func TestDefaultsOfATableFitOneTierOrTwo(t *testing.T) {
	one, two := fleet(2), fleet(2)
	one.Services[0].Affinity, two.Services[0].Affinity = AffinityTable, AffinityTable
	two.Nodes = tiers()
	for _, f := range []*Fleet{&one, &two} {
		f.ApplyDefaults()
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
	}
	s := one.Services[0]
	if want := (Table{Entries: 65536, IndexBits: 6, IdleTimeout: Duration(5 * time.Minute)}); s.Table != want || s.CookieBits != 14 || s.MaxID() != 127 || s.Dispatch != DispatchRR {
		t.Errorf("one tier: %+v, ids to %d", s, s.MaxID())
	}
	if s := two.Services[0]; s.Table.NodeBits != 3 || s.CookieBits != 16 || s.MaxID() != 63 || s.MaxNodeID() != 7 {
		t.Errorf("two tiers: %+v, ids to %d, nodes to %d", s, s.MaxID(), s.MaxNodeID())
	}
	if two.NodeHealth.Interval == 0 || !one.NodeHealth.IsZero() {
		t.Errorf("health of nodes: %+v, %+v", one.NodeHealth, two.NodeHealth)
	}
}

func TestAScrubberIsAServerThatGetsNoConnectionsOfItsOwn(t *testing.T) {
	f := fleet(3)
	f.Services[0].Affinity, f.Services[0].Table.Scrubber, f.Services[0].Servers[2].Weight = AffinityTable, "10.1.0.2", 0
	f.ApplyDefaults()
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

func TestALocalTableGoesWithEveryProtocolAndDispatch(t *testing.T) {
	for _, protocol := range []Protocol{ProtocolTCP, ProtocolUDP} {
		for dispatch := range DispatchLCF + 1 {
			f := fleet(2)
			f.Services[0].Protocol, f.Services[0].Dispatch, f.Services[0].Affinity = protocol, dispatch, AffinityLocal
			f.Keys.Cookie, f.Keys.Current = nil, 0
			f.ApplyDefaults()
			if err := f.Validate(); err != nil {
				t.Errorf("%s, %s: %v", protocol, dispatch, err)
			}
		}
	}
}

func TestNodesGetIDsThatFitEveryService(t *testing.T) {
	f := fleet(1)
	f.Nodes = tiers()
	f.Services[0].Affinity, f.Services[0].Table.NodeBits = AffinityTable, 2
	if id, ok := f.NextFreeNodeID(); id != 3 || !ok {
		t.Errorf("have %d, %v", id, ok)
	}
	f.Nodes[1].ID = 3
	if id, ok := f.NextFreeNodeID(); id != 1 || !ok {
		t.Errorf("have %d, %v", id, ok)
	}
	f.Nodes[0].ID = 1
	if _, ok := f.NextFreeNodeID(); ok {
		t.Error("an id was free among 3 of 3")
	}
}

func TestOneMistakeGivesOneFinding(t *testing.T) {
	f := fleet(3)
	f.Services[0].Servers[1].ID = 1
	f.ApplyDefaults()
	found := problems(t, f)
	if len(found) != 1 || found[0].Error() != "services[0].servers[1].id: 1 is the id of server 10.1.0.0: the next free id is 4" {
		t.Errorf("have %v", found)
	}
}

func TestEachMissingIDIsOfferedAnotherOne(t *testing.T) {
	f := fleet(4)
	f.ApplyDefaults()
	for i := range 3 {
		f.Services[0].Servers[i].ID = 0
	}
	f.Services[0].Servers[3].ID = f.Services[0].MaxID() - 1
	found := problems(t, f)
	if len(found) != 3 {
		t.Fatalf("have %v", found)
	}
	for i, want := range []uint16{f.Services[0].MaxID(), 1, 2} { // above all first, then the smallest
		if !strings.HasSuffix(found[i].Error(), fmt.Sprintf(" id is %d", want)) {
			t.Errorf("%v, want id %d", found[i], want)
		}
	}
}

func TestTwoServicesMayShareAddressOrPort(t *testing.T) {
	f := fleet(2)
	other := f.Services[0].Clone()
	other.Name, other.Ports = "dns", []uint16{53}
	udp := other.Clone()
	udp.Name, udp.Protocol = "dns-udp", ProtocolUDP
	f.Services = append(f.Services, other, udp)
	f.ApplyDefaults()
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

func TestNextFreeIDDoesNotReuseGapsUntilItMust(t *testing.T) {
	s := Service{CookieBits: 8, Servers: []Server{{ID: 1}, {ID: 3}}}
	if id, ok := s.NextFreeID(); id != 4 || !ok {
		t.Errorf("have %d, %v", id, ok)
	}
	s.Servers[1].ID = 127
	if id, ok := s.NextFreeID(); id != 2 || !ok {
		t.Errorf("have %d, %v", id, ok)
	}
	s.Servers = nil
	for id := uint16(1); id <= 127; id++ {
		s.Servers = append(s.Servers, Server{ID: id})
	}
	if _, ok := s.NextFreeID(); ok {
		t.Error("an id was free among 127 of 127")
	}
}

func TestCloneSharesNothing(t *testing.T) {
	f := fleet(2)
	f.Nodes, f.TunnelsFrom = tiers(), []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	clone := f.Clone()
	if !reflect.DeepEqual(f, clone) {
		t.Fatal("the clone differs")
	}
	clone.Keys.Cookie[2] = [16]byte{9}
	clone.Services[0].Ports[0] = 1
	clone.Services[0].Servers[0].ID = 99
	clone.Nodes[0].ID = 99
	clone.TunnelsFrom[0] = netip.IPv6Unspecified()
	want := fleet(2)
	want.Nodes, want.TunnelsFrom = tiers(), []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	if !reflect.DeepEqual(f, want) {
		t.Error("changing the clone changed the original")
	}
}

func TestEnumerationsSurviveText(t *testing.T) {
	s := NewService()
	s.ApplyDefaults()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Service
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, back) {
		t.Errorf("%s became %+v", text, back)
	}
	var d Dispatch
	if err := d.UnmarshalText([]byte("random")); err == nil || !strings.Contains(err.Error(), "hash, maglev, rr, wrr, p2c") {
		t.Errorf("have %v", err)
	}
	if _, err := DispatchUnset.MarshalText(); err == nil {
		t.Error("an unset choice was written")
	}
}

func TestJSONNeverShowsKeys(t *testing.T) {
	f := fleet(1)
	f.ApplyDefaults()
	text, err := json.Marshal(f)
	if err != nil || strings.Contains(strings.ToLower(string(text)), "key") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestDefaultsAreIdempotentAndValidateNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Fleet{Keys: Keys{Current: rapid.Uint32Range(0, 3).Draw(t, "current"), Cookie: map[uint32][16]byte{}}}
		for _, epoch := range rapid.SliceOfN(rapid.Uint32Range(0, 4), 0, 3).Draw(t, "epochs") {
			f.Keys.Cookie[epoch] = [16]byte{byte(epoch)}
		}
		addresses := rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::1%eth0")})
		choice := rapid.SampledFrom([]uint8{0, 1, 2, 3, 4, 6, 17, 255})
		for range rapid.IntRange(0, 3).Draw(t, "services") {
			s := Service{Name: rapid.String().Draw(t, "name"), VIP: addresses.Draw(t, "vip"), Protocol: Protocol(choice.Draw(t, "protocol")),
				MoreVIPs: rapid.SliceOfN(addresses, 0, 3).Draw(t, "more vips"), PortRanges: rapid.SliceOfN(anyRange, 0, 3).Draw(t, "ranges"), Ports: rapid.SliceOf(rapid.Uint16()).Draw(t, "ports"), Dispatch: Dispatch(choice.Draw(t, "dispatch")),
				Affinity: Affinity(choice.Draw(t, "affinity")), Fallback: Fallback(choice.Draw(t, "fallback")),
				CookieBits: rapid.Uint8Range(0, 20).Draw(t, "bits"), Forward: Forward(choice.Draw(t, "forward")),
				Return: Return(choice.Draw(t, "return")), TableSlots: rapid.Uint32().Draw(t, "slots"),
				Table: Table{Entries: rapid.Uint32().Draw(t, "entries"), IndexBits: rapid.Uint8Range(0, 20).Draw(t, "index"), NodeBits: rapid.Uint8Range(0, 20).Draw(t, "node"),
					Scrubber: rapid.SampledFrom([]string{"", "a"}).Draw(t, "scrubber")}}
			for range rapid.IntRange(0, 4).Draw(t, "servers") {
				s.Servers = append(s.Servers, Server{Name: rapid.String().Draw(t, "server"), Address: addresses.Draw(t, "address"),
					Port: rapid.Uint16().Draw(t, "port"), ID: rapid.Uint16().Draw(t, "id"), Weight: rapid.Uint16().Draw(t, "weight"),
					State: ServerState(choice.Draw(t, "state"))})
			}
			f.Services = append(f.Services, s)
		}
		for range rapid.IntRange(0, 3).Draw(t, "nodes") {
			f.Nodes = append(f.Nodes, Node{Name: rapid.String().Draw(t, "node"), Tier: Tier(choice.Draw(t, "tier")), Address: addresses.Draw(t, "node address"),
				ID: rapid.Uint16().Draw(t, "node id"), State: ServerState(choice.Draw(t, "node state"))})
		}
		f.ApplyDefaults()
		again := f.Clone()
		again.ApplyDefaults()
		if !reflect.DeepEqual(f, again) {
			t.Fatalf("applying defaults twice changed %+v to %+v", f, again)
		}
		_ = f.Validate()
	})
}

func TestSharesLeaveOutDrainingAndWeightlessServers(t *testing.T) {
	s := Service{Servers: []Server{{ID: 1, Weight: 2}, {ID: 2, Weight: 1, State: StateDraining}, {ID: 3}}}
	if got := fmt.Sprint(s.Shares()); got != "[{1 2}]" {
		t.Errorf("shares %s", got)
	}
	if got := fmt.Sprint(s.SharesBeforeDrain()); got != "[{1 2} {2 1}]" {
		t.Errorf("shares before drain %s", got)
	}
}
