package rotation_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

var server = netip.MustParseAddr("10.0.0.1")

func fleetOf(current uint32, epochs ...uint32) *model.Fleet {
	keys := model.Keys{Current: current, Cookie: map[uint32][16]byte{}}
	for _, epoch := range epochs {
		keys.Cookie[epoch] = [16]byte{byte(epoch)}
	}
	return &model.Fleet{Keys: keys, Services: []model.Service{{Name: "web", Affinity: model.AffinityCookie,
		Servers: []model.Server{{Name: "s1", Address: server}}}}}
}

// nodes are a load balancer and the agent of the one server, which have taken what the fleet says.
func nodes(fleet *model.Fleet, connections map[uint32]uint64) *rotation.Nodes {
	return &rotation.Nodes{Keys: fleet.Keys, List: []rotation.Node{
		{Name: "lb1", HasKeys: true},
		{Agent: true, Name: "host", Addresses: []netip.Addr{server},
			Report: &rotation.Report{Epochs: fleet.Keys.Epochs(), Current: fleet.Keys.Current, Connections: connections}},
	}}
}

func TestAKeyIsUsedOnlyWhenEveryNodeHasIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*model.Fleet, *rotation.Nodes)
		want   string // empty: it may be used
	}{
		"all have it":                 {func(*model.Fleet, *rotation.Nodes) {}, ""},
		"a load balancer is behind":   {func(_ *model.Fleet, n *rotation.Nodes) { n.List[0].HasKeys = false }, "load balancer lb1 does not have the key of epoch 2"},
		"an agent is behind":          {func(_ *model.Fleet, n *rotation.Nodes) { n.List[1].Report.Epochs = []uint32{1} }, "agent host does not have the key of epoch 2"},
		"an agent has not reported":   {func(_ *model.Fleet, n *rotation.Nodes) { n.List[1].Report = nil }, "agent host has not reported"},
		"an agent is gone":            {func(_ *model.Fleet, n *rotation.Nodes) { n.List = n.List[:1] }, "server s1 of service web: no agent"},
		"every load balancer is gone": {func(_ *model.Fleet, n *rotation.Nodes) { n.List = n.List[1:] }, "no load balancer is connected"},
		"one with a tier is gone":     {func(f *model.Fleet, _ *rotation.Nodes) { f.Nodes = []model.Node{{Name: "lb2"}} }, "load balancer lb2 is not connected"},
		"a load balancer is lost":     {func(_ *model.Fleet, n *rotation.Nodes) { n.Lost = []rotation.Node{{Name: "lb2"}} }, "load balancer lb2 is lost"},
		"an agent is lost":            {func(_ *model.Fleet, n *rotation.Nodes) { n.Lost = []rotation.Node{{Agent: true, Name: "s2"}} }, "agent s2 is lost"},
		"nodes were not told yet":     {func(_ *model.Fleet, n *rotation.Nodes) { n.Keys = fleetOf(1, 1).Keys }, "not been sent"},
		"the service needs no agents": {func(f *model.Fleet, n *rotation.Nodes) {
			f.Services[0].Return = model.ReturnThrough
			n.List = n.List[:1]
		}, ""},
		"the server is off": {func(f *model.Fleet, n *rotation.Nodes) {
			f.Services[0].Servers[0].State = model.StateOff
			n.List = n.List[:1]
		}, ""},
		"the agent is known by name":       {func(_ *model.Fleet, n *rotation.Nodes) { n.List[1].Name, n.List[1].Addresses = "s1", nil }, ""},
		"nobody else can be asked":         {func(_ *model.Fleet, n *rotation.Nodes) { *n = rotation.Nodes{Blind: "by a file"} }, ""},
		"it is current, and one is behind": {func(f *model.Fleet, n *rotation.Nodes) { f.Keys.Current = 2; n.List[0].HasKeys = false }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := fleetOf(1, 1, 2)
			n := nodes(fleet, nil)
			c.change(fleet, n)
			expect(t, n.UseRefused(fleet, 2), c.want)
		})
	}
}

func TestAKeyIsDroppedOnlyWhenNobodyEchoesIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rotation.Nodes)
		want   string
	}{
		"nobody does":                  {func(*rotation.Nodes) {}, ""},
		"one does":                     {func(n *rotation.Nodes) { n.List[1].Report.Connections[1] = 1 }, "agent host has 1 living connection whose client still echoes epoch 1"},
		"some do":                      {func(n *rotation.Nodes) { n.List[1].Report.Connections[1] = 7 }, "7 living connections"},
		"others echo the current one":  {func(n *rotation.Nodes) { n.List[1].Report.Connections[2] = 7 }, ""},
		"the report is old":            {func(n *rotation.Nodes) { n.List[1].Report.Age = 41 * time.Second }, "has not reported its connections for 41s"},
		"there is no report":           {func(n *rotation.Nodes) { n.List[1].Report = nil }, "has not reported its connections"},
		"they cannot be counted":       {func(n *rotation.Nodes) { n.List[1].Report.Unavailable = "no iterator" }, "cannot count its connections: no iterator"},
		"the agent writes the old one": {func(n *rotation.Nodes) { n.List[1].Report.Current = 1 }, "still writes cookies of epoch 1"},
		"a load balancer is behind":    {func(n *rotation.Nodes) { n.List[0].HasKeys = false }, "load balancer lb1 does not have the keys"},
		"a load balancer is lost":      {func(n *rotation.Nodes) { n.Lost = []rotation.Node{{Name: "lb2"}} }, "load balancer lb2 is lost"},
		"the agent is gone":            {func(n *rotation.Nodes) { n.List = n.List[:1] }, "server s1 of service web: no agent"},
		"nobody else can be asked":     {func(n *rotation.Nodes) { *n = rotation.Nodes{Blind: "by a file"} }, "by a file"},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := fleetOf(2, 1, 2)
			n := nodes(fleet, map[uint32]uint64{2: 3})
			c.change(n)
			expect(t, n.DropRefused(fleet, 1), c.want)
		})
	}
}

// Nobody sees which epoch the ids of a QUIC connection are of, once its client has stopped sending.
func TestAKeyThatConnectionIDsMayCarryIsNotDropped(t *testing.T) {
	service := model.NewService()
	service.Name, service.Protocol, service.Affinity = "h3", model.ProtocolUDP, model.AffinityQUIC
	fleet := model.Fleet{Services: []model.Service{service}, Keys: model.Keys{Current: 2, Cookie: map[uint32][16]byte{1: {1}, 2: {2}}}}
	nodes := rotation.Nodes{Keys: fleet.Keys}
	for current, dropped := range map[uint32]uint32{2: 1, 1: 2} { // with 1 in use again, a rotation was aborted
		fleet.Keys.Current, nodes.Keys.Current = current, current
		if found := nodes.DropRefused(&fleet, dropped); len(found) != 1 || !strings.Contains(found[0], "service h3 has affinity quic") {
			t.Errorf("with %d in use, of %d: said %q", current, dropped, found)
		}
	}
	other := service
	other.Name = "h4"
	two := model.Fleet{Services: []model.Service{service, other}, Keys: fleet.Keys}
	if found := nodes.DropRefused(&two, 3-two.Keys.Current); len(found) != 1 || !strings.HasPrefix(found[0], "services h3, h4 have affinity quic") {
		t.Errorf("of two services: said %q", found)
	}
	if found := rotation.Uncounted(&fleet); !slices.Equal(found, []string{"h3"}) {
		t.Errorf("not counted: %q", found)
	}
}

func TestReplacingKeysAsAWholeHasTheRisksOfItsSteps(t *testing.T) {
	one, both, other := fleetOf(1, 1).Keys, fleetOf(2, 1, 2).Keys, fleetOf(1, 1).Keys
	other.Cookie = map[uint32][16]byte{1: {99}}
	moved := both
	moved.Placement = [16]byte{1}
	for name, c := range map[string]struct {
		now  *model.Fleet
		next model.Keys
		want string
	}{
		"nothing changes":       {fleetOf(2, 1, 2), both, ""},
		"the current goes":      {fleetOf(2, 1, 2), one, "the key of epoch 2 is removed: cookies are written with it"},
		"the old goes":          {fleetOf(2, 1, 2), fleetOf(2, 2).Keys, "the key of epoch 1 is removed: agent host has 5"},
		"another under it":      {fleetOf(1, 1), other, "becomes another one"},
		"placement":             {fleetOf(2, 1, 2), moved, "placement"},
		"added and used":        {fleetOf(1, 1), both, "no node has its key yet"},
		"added and not used":    {fleetOf(1, 1), fleetOf(1, 1, 2).Keys, ""},
		"used when all have it": {fleetOf(1, 1, 2), both, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, nodes(c.now, map[uint32]uint64{1: 5}).Risks(c.now, &c.next), c.want)
		})
	}
}

// A store that was lost, or is another fleet's, gets the keys that living connections carry, under their epochs, or none.
func TestKeysThatLackThoseOfLivingConnectionsAreARisk(t *testing.T) {
	live := fleetOf(3, 2, 3).Keys
	changed := func(change func(*model.Keys)) model.Keys {
		keys := fleetOf(3, 2, 3).Keys
		change(&keys)
		return keys
	}
	for name, c := range map[string]struct {
		store *model.Fleet
		next  model.Keys
		older bool // the agent sends no fingerprints
		want  string
	}{
		"the same":                        {&model.Fleet{}, live, false, ""},
		"only the one that they carry":    {&model.Fleet{}, fleetOf(3, 3).Keys, false, ""},
		"of before the rotations":         {&model.Fleet{}, fleetOf(1, 1).Keys, false, "5 living connections carry a key of epoch 3, which is not among these"},
		"the same, of an older agent":     {&model.Fleet{}, fleetOf(1, 1).Keys, true, "5 living connections carry a key of epoch 3"},
		"another digit":                   {&model.Fleet{}, changed(func(k *model.Keys) { k.Cookie[3] = [16]byte{3, 1} }), false, "5 living connections carry another key of epoch 3"},
		"that, of an older agent":         {&model.Fleet{}, changed(func(k *model.Keys) { k.Cookie[3] = [16]byte{3, 1} }), true, ""},
		"another placement":               {&model.Fleet{}, changed(func(k *model.Keys) { k.Placement = [16]byte{1} }), false, "agent host has another placement key"},
		"one that no node has is current": {&model.Fleet{}, fleetOf(4, 3, 4).Keys, false, "cookies are written with epoch 4, whose key agent host does not have"},
		"the store has older ones":        {fleetOf(1, 1), fleetOf(1, 1, 2).Keys, false, "5 living connections carry a key of epoch 3"},
		"it has, and they stay":           {fleetOf(1, 1), fleetOf(1, 1).Keys, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodes(&model.Fleet{Keys: live}, map[uint32]uint64{0: 1, 2: 0, 3: 5})
			if report := n.List[1].Report; !c.older {
				report.Placement = rotation.Fingerprint(live.Placement)
				report.Fingerprints = map[uint32][]byte{2: rotation.Fingerprint(live.Cookie[2]), 3: rotation.Fingerprint(live.Cookie[3])}
			}
			expect(t, n.Risks(c.store, &c.next), c.want)
		})
	}
}

// Load balancers remember removed servers by the store alone: one that was lost is told of those that have connections.
func TestALostStoreIsToldOfAllServersThatHaveConnections(t *testing.T) {
	fleet := fleetOf(1, 1)
	n := nodes(fleet, map[uint32]uint64{1: 5})
	expect(t, n.Unnamed(fleet), "")
	fleet.Services[0].Servers = fleet.Services[0].Servers[:0]
	expect(t, n.Unnamed(fleet), "agent host has 5 living connections and is no server of this fleet")
	expect(t, nodes(fleet, map[uint32]uint64{1: 0}).Unnamed(fleet), "")
}

func expect(t *testing.T, found []string, want string) {
	t.Helper()
	if want == "" && len(found) > 0 || want != "" && !strings.Contains(strings.Join(found, "; "), want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// Who sees no other node is not told to look for connections of the old key before the new one is used.
func TestAKeyThatIsNotInUseYetIsUsedNext(t *testing.T) {
	nodes := rotation.Nodes{Blind: "look at the old one", BlindUnused: "use it next"}
	fleet := model.Fleet{Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1}, 2: {2}}}}
	if why := nodes.DropRefused(&fleet, 2); !slices.Equal(why, []string{"use it next"}) {
		t.Errorf("the new key: %q", why)
	}
	fleet.Keys.Current = 2
	if why := nodes.DropRefused(&fleet, 1); !slices.Equal(why, []string{"look at the old one"}) {
		t.Errorf("the old key: %q", why)
	}
}
