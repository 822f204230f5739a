package api

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// drawFleet makes a valid fleet with its defaults applied.
func drawFleet(t *rapid.T) model.Fleet {
	fleet := model.Fleet{Keys: model.Keys{Placement: [16]byte{1}, Current: 2, Cookie: map[uint32][16]byte{2: drawKey(t), 3: {0xff, 3}}}}
	for i := range rapid.IntRange(0, 4).Draw(t, "services") {
		fleet.Services = append(fleet.Services, drawService(t, i))
	}
	drawNodes(t, &fleet)
	fleet.Unserved = rapid.SampledFrom([]model.Unserved{model.UnservedPass, model.UnservedReject}).Draw(t, "unserved")
	fleet.ApplyDefaults()
	if err := fleet.Validate(); err != nil {
		t.Fatalf("the generator made what is not valid: %v", err)
	}
	return fleet
}

func drawNodes(t *rapid.T, f *model.Fleet) {
	for i := range rapid.IntRange(0, 3).Draw(t, "second tier") {
		f.Nodes = append(f.Nodes, model.Node{Name: fmt.Sprintf("second-%d", i), Tier: model.TierSecond, Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
			ID: uint16(i + 1), State: rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateDraining, model.StateOff}).Draw(t, "node state")})
	}
	if len(f.Nodes) > 0 && rapid.Bool().Draw(t, "nodes are checked") {
		drawHealth(t, &f.NodeHealth)
		f.NodeHealth.Port, f.NodeHealth.Deadline = 9435, 0
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "first tier") {
		f.Nodes = append(f.Nodes, model.Node{Name: fmt.Sprintf("first-%d", i), Tier: model.TierFirst})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "with BGP") {
		f.Nodes = append(f.Nodes, model.Node{Name: fmt.Sprintf("bgp-%d", i), Tier: rapid.SampledFrom([]model.Tier{0, model.TierFirst}).Draw(t, "tier"),
			State: rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateDraining}).Draw(t, "bgp state"), BGP: drawBGP(t)})
	}
}

func drawBGP(t *rapid.T) model.BGP {
	b := model.BGP{AS: rapid.Uint32Range(1, 1<<32-1).Draw(t, "as"), NeighborAS: 64512, Neighbors: []model.Neighbor{{Address: netip.MustParseAddr("192.0.2.100")}},
		ListenPort: rapid.Uint16().Draw(t, "listen port"), PasswordFile: rapid.SampledFrom([]string{"", "/etc/password"}).Draw(t, "password file"),
		HoldTime: model.Duration(rapid.SampledFrom([]time.Duration{0, 9 * time.Second}).Draw(t, "hold time")), MED: rapid.Uint32().Draw(t, "med"),
		Announce: rapid.SampledFrom([]model.Announce{model.AnnounceAble, model.AnnounceAlways}).Draw(t, "announce")}
	if b.PasswordFile != "" {
		b.ListenPort = 0
	}
	if rapid.Bool().Draw(t, "another router") {
		b.RouterID = model.RouterID{Addr: netip.MustParseAddr("192.0.2.101")}
		b.Neighbors = append(b.Neighbors, model.Neighbor{Address: netip.MustParseAddr("2001:db8::1"), AS: 4200000000})
		b.Communities = []model.Community{0xffffff01, 64512<<16 | 7}
	}
	switch rapid.IntRange(0, 2).Draw(t, "way") {
	case 0:
		b.Multihop = 3
	case 1:
		b.TTLSecurity, b.BFD = 1, model.BFD{Interval: model.Duration(300 * time.Millisecond), Multiplier: rapid.Uint8Range(0, 5).Draw(t, "multiplier")}
	}
	return b
}

// drawTable gives a service a connection table whose cookies have room for 100 servers.
func drawTable(t *rapid.T, s *model.Service) {
	s.Affinity, s.CookieBits = model.AffinityTable, 16
	s.Table = model.Table{Entries: rapid.SampledFrom([]uint32{0, model.MinEntries, model.MaxEntries}).Draw(t, "entries"), IndexBits: rapid.Uint8Range(1, 5).Draw(t, "index bits"),
		NodeBits: rapid.SampledFrom([]uint8{0, 2, 3}).Draw(t, "node bits"), IdleTimeout: model.Duration(rapid.SampledFrom([]time.Duration{0, time.Second, 90 * time.Second}).Draw(t, "idle")),
		PacketLimit: rapid.Uint32Range(0, model.MaxPacketLimit).Draw(t, "limit")}
}

func drawKey(t *rapid.T) (key [16]byte) {
	copy(key[:], rapid.SliceOfN(rapid.Byte(), 15, 15).Draw(t, "key"))
	key[15] = 1 // never all zeros, never that of another epoch
	return key
}

func drawService(t *rapid.T, i int) model.Service {
	s := model.NewService()
	s.Name, s.VIP = fmt.Sprintf("web-%d", i), netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
	s.Protocol = rapid.SampledFrom([]model.Protocol{0, model.ProtocolTCP, model.ProtocolUDP}).Draw(t, "protocol")
	s.Ports = rapid.SliceOfNDistinct(rapid.Uint16Range(1, 65535), 1, model.MaxPorts, rapid.ID).Draw(t, "ports")
	s.Return = rapid.SampledFrom([]model.Return{model.ReturnUnset, model.ReturnDirect}).Draw(t, "return")
	if s.Protocol != model.ProtocolUDP {
		s.Dispatch = rapid.SampledFrom([]model.Dispatch{model.DispatchUnset, model.DispatchHash, model.DispatchLCF, model.DispatchAWFD}).Draw(t, "dispatch")
		s.CookieBits = rapid.SampledFrom([]uint8{0, 8, 16}).Draw(t, "bits")
		s.Fallback = rapid.SampledFrom([]model.Fallback{model.FallbackUnset, model.FallbackHash}).Draw(t, "fallback")
	}
	s.Forward = rapid.SampledFrom([]model.Forward{model.ForwardUnset, model.ForwardGUE, model.ForwardL2}).Draw(t, "forward")
	s.TableSlots = rapid.SampledFrom(append(model.TableSizes(), 0)).Draw(t, "slots")
	s.Load.Classes = rapid.SampledFrom([]uint8{model.ClassesUnset, 0, 1, model.MaxClasses}).Draw(t, "classes")
	s.SessionClients = rapid.SampledFrom([]uint8{model.SessionClientsUnset, 0, model.DefaultSessionClients}).Draw(t, "clients")
	s.Load.Interval = model.Duration(rapid.SampledFrom([]time.Duration{0, 10 * time.Millisecond, 12345 * time.Microsecond}).Draw(t, "interval"))
	if rapid.Bool().Draw(t, "endpoint") {
		s.Load.Endpoint = "http://:8080/load"
	}
	if s.Protocol != model.ProtocolUDP && s.Dispatch != model.DispatchHash && s.Load.Classes != 0 {
		s.SlowStart = model.Duration(rapid.SampledFrom([]time.Duration{0, 12345 * time.Millisecond}).Draw(t, "slow start"))
	}
	for _, bits := range rapid.SliceOfNDistinct(rapid.IntRange(0, 32), 0, 3, rapid.ID).Draw(t, "allow") {
		s.Allow = append(s.Allow, netip.PrefixFrom(netip.MustParseAddr("192.0.2.77"), bits).Masked())
	}
	if s.Dispatch == model.DispatchHash && rapid.Bool().Draw(t, "by source") {
		s.Placement = model.Placement{Over: model.PlaceSource, IPv4Prefix: rapid.Uint8Range(0, 32).Draw(t, "IPv4 prefix"), IPv6Prefix: rapid.Uint8Range(0, 128).Draw(t, "IPv6 prefix")}
	}
	if s.Protocol != model.ProtocolUDP && rapid.Bool().Draw(t, "limited sources") {
		s.SourceLimit = model.SourceLimit{Rate: rapid.Uint32Range(1, model.MaxSourceRate).Draw(t, "rate"), Burst: rapid.Uint32Max(1000).Draw(t, "burst"),
			IPv4Prefix: rapid.Uint8Range(0, 32).Draw(t, "IPv4 source"), IPv6Prefix: rapid.Uint8Range(0, 64).Draw(t, "IPv6 source")}
	}
	drawHealth(t, &s.Health)
	through := s.Protocol != model.ProtocolUDP && rapid.Bool().Draw(t, "through")
	if through {
		s.Return, s.Forward, s.Fallback, s.CookieBits, s.Ports = model.ReturnThrough, model.ForwardNAT, model.FallbackHash, model.ThroughBits, s.Ports[:1]
	}
	if s.Protocol != model.ProtocolUDP && !through && rapid.Bool().Draw(t, "table") {
		drawTable(t, &s)
	}
	if !through {
		further := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: 1, 15: byte(i + 1)})
		s.MoreVIPs = rapid.SampledFrom([][]netip.Addr{nil, {netip.AddrFrom4([4]byte{198, 51, 101, byte(i + 1)})}, {further}}).Draw(t, "vips")
		if s.Affinity == model.AffinityTable {
			s.MoreVIPs = nil
		}
		if last := slices.Max(s.Ports); last < 60000 && len(s.Ports) < model.MaxPorts && rapid.Bool().Draw(t, "range") {
			s.PortRanges = []model.PortRange{{First: last + 1, Last: last + 1000}}
		}
	}
	for id := range rapid.IntRange(0, 100).Draw(t, "servers") {
		s.Servers = append(s.Servers, drawServer(t, i, uint16(id+1)))
		if through {
			s.Servers[id].Port = rapid.Uint16().Draw(t, "server port")
		}
	}
	return s
}

func drawHealth(t *rapid.T, h *model.Health) {
	h.Check = rapid.SampledFrom([]model.Check{model.CheckNone, model.CheckTCP, model.CheckHTTP, model.CheckGRPC, model.CheckGRPCS, model.CheckExec}).Draw(t, "check")
	switch h.Check {
	case model.CheckHTTP:
		h.Path, h.Host = "/healthz", rapid.SampledFrom([]string{"", "example.com"}).Draw(t, "host")
	case model.CheckGRPC, model.CheckGRPCS:
		h.Service = "shop"
	case model.CheckExec:
		h.Command = []string{"/bin/check", "--fast"}
	}
	h.Rise, h.Fall = rapid.Uint8Max(3).Draw(t, "rise"), rapid.Uint8().Draw(t, "fall")
	h.Port, h.AllDown = rapid.Uint16().Draw(t, "port"), rapid.SampledFrom([]model.AllDown{model.AllDownKeep, model.AllDownNone}).Draw(t, "all down")
	h.Deadline = model.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "deadline"))
}

func drawServer(t *rapid.T, service int, id uint16) model.Server {
	s := model.Server{Address: netip.AddrFrom4([4]byte{10, byte(service), byte(id >> 8), byte(id)}), ID: id}
	s.Weight = rapid.SampledFrom([]uint16{0, 1, model.MaxWeight, model.WeightUnset}).Draw(t, "weight")
	s.State = rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateDraining, model.StateOff}).Draw(t, "state")
	if s.State != model.StateActive && rapid.Bool().Draw(t, "has deadline") {
		s.Deadline = time.Unix(rapid.Int64Range(1, 1<<35).Draw(t, "at"), 0).UTC()
	}
	return s
}

func TestAFleetComesBackFromTheWireAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := drawFleet(t)
		request := FleetToProto(&fleet)
		request.Keys = KeysToProto(&fleet.Keys)
		text, err := proto.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		var read ballastv1.ApplyRequest
		if err := proto.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		back, err := FleetFromProto(&read, read.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if len(fleet.Services) == 0 {
			fleet.Services = back.Services // nil or empty
		}
		if !reflect.DeepEqual(back, fleet) {
			t.Fatalf("%+v came back as %+v", fleet, back)
		}
	})
}

func TestWhatIsUnsetStaysUnsetOnTheWire(t *testing.T) {
	s := model.NewService()
	s.Servers = []model.Server{model.NewServer()}
	back, err := ServiceFromProto(ServiceToProto(&s))
	if err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("%+v came back as %+v, %v", s, back, err)
	}
}

func TestSharesComeBackFromTheWireAsTheyWere(t *testing.T) {
	past := [][]model.Share{{{ID: 1, Weight: 2}}, {{ID: 65535, Weight: 256}, {ID: 3}}}
	back, err := PastFromProto(PastToProto(past))
	if err != nil || !reflect.DeepEqual(back, past) {
		t.Errorf("%v came back as %v, %v", past, back, err)
	}
}

func TestMessagesThatMakeNoSenseAreRefusedWithPathAndRemedy(t *testing.T) {
	many := uint32(999)
	unset := uint32(model.ClassesUnset) // of sessions' clients, too
	_, err := FleetFromProto(&ballastv1.ApplyRequest{Services: []*ballastv1.Service{{}, {
		Name: "web", Vip: "198.51.100", Protocol: "sctp", Ports: []uint32{70000}, Dispatch: "best", CookieBits: 300, Placement: &ballastv1.Placement{Over: "port", Ipv6Prefix: 256},
		Table:          &ballastv1.Table{IndexBits: 256, NodeBits: &many, IdleTimeout: durationpb.New(0)},
		SessionClients: &unset, Load: &ballastv1.Load{Classes: &unset, Interval: durationpb.New(0)}, Health: &ballastv1.Health{Check: "ping", Rise: 256, Deadline: &durationpb.Duration{Seconds: -1}},
		Servers: []*ballastv1.Server{{Name: "s1"}, {Address: "x", Id: 70000, Weight: &many, State: "gone"}},
	}}, Nodes: []*ballastv1.Node{{}, {Tier: "third", Address: "y", Id: 65536, State: "gone"}}, NodeHealth: &ballastv1.Health{Check: "ping"}}, &ballastv1.Keys{Placement: []byte("secret")})
	var found []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var invalid *model.Invalid
		if !errors.As(e, &invalid) || invalid.Remedy == "" || invalid.Problem == "" {
			t.Errorf("%v has no path, problem or remedy", e)
			continue
		}
		found = append(found, invalid.Path)
	}
	want := "nodes[1].id nodes[1].tier nodes[1].address nodes[1].state services[1].vip services[1].protocol services[1].ports services[1].dispatch services[1].session_clients " +
		"services[1].cookie_bits services[1].table.index_bits services[1].table.node_bits services[1].table.idle_timeout services[1].load.interval " +
		"services[1].load.classes services[1].placement.over services[1].placement.ipv6_prefix services[1].health.check services[1].health.rise services[1].health.deadline services[1].servers[1].address " +
		"services[1].servers[1].id services[1].servers[1].weight services[1].servers[1].state node_health.check keys.placement"
	if strings.Join(found, " ") != want {
		t.Errorf("found %s, not %s", strings.Join(found, " "), want)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the secret is in %v", err)
	}
}

func BenchmarkFleetOnTheWire(b *testing.B) {
	const servers = 1 << 16
	var fleet model.Fleet
	for i := range servers {
		if i%256 == 0 {
			fleet.Services = append(fleet.Services, model.Service{Name: fmt.Sprint(i), VIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), 1}), Ports: []uint16{80}})
		}
		s := &fleet.Services[len(fleet.Services)-1]
		s.Servers = append(s.Servers, model.Server{Name: fmt.Sprint(i), Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), ID: uint16(i%256 + 1), Weight: 1})
	}
	for b.Loop() {
		if back, err := FleetFromProto(FleetToProto(&fleet), KeysToProto(&fleet.Keys)); err != nil || len(back.Services) != servers/256 {
			b.Fatal(err)
		}
	}
}
