package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleet has one cookie service whose servers' ids are given; server n is at 10.0.0.n.
func fleet(ids ...uint16) model.Fleet {
	service := model.NewService()
	service.Name, service.VIP, service.Ports = "web", netip.MustParseAddr("198.51.100.1"), []uint16{80}
	for _, id := range ids {
		server := model.NewServer()
		server.ID, server.Address = id, netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})
		service.Servers = append(service.Servers, server)
	}
	f := model.Fleet{Services: []model.Service{service}, Keys: model.Keys{
		Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}},
	}}
	f.ApplyDefaults()
	return f
}

func started(t *testing.T, ids ...uint16) *Desired {
	t.Helper()
	n := &Desired{}
	edit(t, n, fleet(ids...), start)
	return n
}

func edit(t *testing.T, n *Desired, f model.Fleet, at time.Time) []string {
	t.Helper()
	changes, err := n.EditFile(f, at)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func drain(name string) Edit {
	return func(next *Desired) error {
		next.Running.Service("web").Server(name).State = model.StateDraining
		return nil
	}
}

func TestUnchangedLinesOfTheFileDoNotUndoWhatCtlChanged(t *testing.T) {
	n := started(t, 1, 2)
	if _, err := n.Change(start, drain("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	edit(t, n, fleet(1, 2, 3), start)
	if got := n.Running.Service("web").Server("10.0.0.1").State; got != model.StateDraining {
		t.Errorf("server 1 is %s after an edit elsewhere", got)
	}
	if len(n.Running.Service("web").Servers) != 3 {
		t.Errorf("the added server is missing: %v", n.Running.Service("web").Servers)
	}
	if differences := n.Differences(); len(differences) != 1 || !strings.Contains(differences[0], "draining") {
		t.Errorf("differences from the file: %q", differences)
	}
	if _, err := n.Reset(false, start); err != nil || len(n.Differences()) != 0 {
		t.Errorf("back to the file: %v, %q", err, n.Differences())
	}
}

func TestARemovedServerLingersUntilItHasBeenSilentForLong(t *testing.T) {
	n := started(t, 1, 2)
	edit(t, n, fleet(2), start)
	if got := n.Lingering("web"); len(got) != 1 || got[0].ID != 1 {
		t.Fatalf("lingering: %v", got)
	}
	timing := Timing{Linger: time.Hour, Quarantine: time.Hour}
	count := uint64(0)
	packets := func(string, uint16) uint64 { return count }
	for minute := range 90 { // it is spoken to for half an hour
		if minute < 30 {
			count++
		}
		changed := n.Age(start.Add(time.Duration(minute)*time.Minute), timing, packets)
		if changed {
			t.Fatalf("forgotten after %d minutes", minute)
		}
	}
	if !n.Age(start.Add(91*time.Minute), timing, packets) || len(n.Lingering("web")) != 0 {
		t.Error("not forgotten after an hour of silence")
	}
	if got := n.NextID(n.Running.Service("web")); got != 3 {
		t.Errorf("next id %d: the forgotten server's id must rest", got)
	}
	n.Age(start.Add(4*time.Hour), timing, packets)
	if len(n.Removed) != 0 {
		t.Errorf("still in quarantine: %v", n.Removed)
	}
}

// Promise: The id of a removed server is not given to another for 48 h after its last packet (`--linger` and
// `--quarantine`), per load balancer.
// Also held by TestARemovedServerLingersUntilItHasBeenSilentForLong.
func TestAnIDThatConnectionsMayCarryIsNotGivenToAnotherServer(t *testing.T) {
	n := started(t, 1, 2)
	other := fleet(1, 2)
	other.Services[0].Servers[0].Address = netip.MustParseAddr("10.0.0.9")
	other.Services[0].Servers[0].Name = "other"
	if _, err := n.EditFile(other, start); err == nil || !strings.Contains(err.Error(), "use id 3") {
		t.Errorf("another server took over id 1 directly: %v", err)
	}
	edit(t, n, fleet(2), start)
	if _, err := n.EditFile(other, start); err == nil {
		t.Error("another server took over the id of a removed one")
	}
	edit(t, n, fleet(1, 2), start)
	if len(n.Removed) != 0 {
		t.Errorf("the server came back and is still removed: %v", n.Removed)
	}
	edit(t, n, fleet(2), start)
	if _, err := n.Forget("web", "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	edit(t, n, other, start)
}

func TestARefusedEditChangesNothing(t *testing.T) {
	n := started(t, 1, 2)
	bad := fleet(1, 2)
	bad.Services[0].Ports = nil
	if _, err := n.EditFile(bad, start); err == nil {
		t.Fatal("a service without ports was accepted")
	}
	if len(n.Running.Services[0].Ports) != 1 || len(n.Differences()) != 0 {
		t.Errorf("the refused edit left traces: %v", n.Running)
	}
}

// Promise: A load balancer that reboots keeps connections without timestamps within the last eight versions of the
// pool.
func TestThePastOfATableIsRemembered(t *testing.T) {
	n := started(t, 1, 2)
	for id := range uint16(20) {
		edit(t, n, fleet(1, 2, 3+id), start)
	}
	past := n.Past["web"]
	if len(past) != pastDepth {
		t.Fatalf("%d versions are remembered, not %d", len(past), pastDepth)
	}
	if last := past[len(past)-1]; last[len(last)-1].ID != 21 {
		t.Errorf("the last version was %v", last)
	}
}

func TestWhatLivingCookiesAreMadeOfCannotBeReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*model.Fleet)
		want string
	}{
		"placement key":     {func(f *model.Fleet) { f.Keys.Placement = [16]byte{9} }, "keys.placement"},
		"key of an epoch":   {func(f *model.Fleet) { f.Keys.Cookie[1] = [16]byte{9} }, "keys.cookie.1"},
		"width of a cookie": {func(f *model.Fleet) { f.Services[0].CookieBits = 10 }, "cookie_bits"},
	} {
		n := started(t, 1, 2)
		next := fleet(1, 2)
		c.edit(&next)
		if _, err := n.EditFile(next, start); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// tabled gives the service a connection table whose ids have 7 bits.
func tabled(f model.Fleet) model.Fleet {
	f.Services[0].Affinity = model.AffinityTable
	f.ApplyDefaults()
	return f
}

func TestAServiceGetsATableWhileItsConnectionsLive(t *testing.T) {
	n := started(t, 1, 127)
	edit(t, n, tabled(fleet(1, 127)), start)
	n = started(t, 1, 128)
	if _, err := n.EditFile(tabled(fleet(1)), start); err == nil || !strings.Contains(err.Error(), "id 128") {
		t.Errorf("a server was removed whose connections' cookies would be misread: %v", err)
	}
	edit(t, n, fleet(1), start)
	if _, err := n.EditFile(tabled(fleet(1)), start); err == nil || !strings.Contains(err.Error(), "ballast ctl server forget") {
		t.Errorf("cookies of a removed server would be misread: %v", err)
	}
	if _, err := n.Forget("web", "10.0.0.128"); err != nil {
		t.Fatal(err)
	}
	edit(t, n, tabled(fleet(1)), start)
}

// Promise: A service gets a connection table and gives it up while its connections live, as often as wanted, as long as its cookies keep the index's room.
func TestAServiceGivesItsTableUpAndKeepsItsRoom(t *testing.T) {
	n := started(t, 1, 127)
	given := tabled(fleet(1, 127))
	given.Services[0].Affinity, given.Services[0].Table = model.AffinityCookie, given.Services[0].Table.Room()
	for range 2 {
		edit(t, n, tabled(fleet(1, 127)), start)
		edit(t, n, given, start)
	}
	if bits := n.Running.Services[0].IDBits(); bits != 7 {
		t.Errorf("ids have %d bits where connections carry an index above 7", bits)
	}
	if _, err := n.EditFile(fleet(1, 127), start); err == nil || !strings.Contains(err.Error(), "table.index_bits: living connections carry the index") {
		t.Errorf("the room of indices that connections carry goes to ids: %v", err)
	}
	if _, err := n.EditFile(fleet(1, 128), start); err == nil {
		t.Error("an id stands where connections carry an index")
	}
}

func TestTheLayoutOfLivingCookiesStays(t *testing.T) {
	for _, c := range []struct {
		path   string
		change func(*model.Fleet)
	}{
		{"services.web.cookie_bits", func(f *model.Fleet) { f.Services[0].CookieBits = 16 }},
		{"services.web.table.index_bits", func(f *model.Fleet) { f.Services[0].Table.IndexBits = 5 }},
		{"services.web.table.node_bits", func(f *model.Fleet) { f.Services[0].Table.NodeBits = 1 }},
		{"services.web.table.index_bits", func(f *model.Fleet) {
			f.Services[0].Affinity, f.Services[0].Table = model.AffinityCookie, model.Table{}
		}},
	} {
		path, change := c.path, c.change
		n := &Desired{}
		edit(t, n, tabled(fleet(1, 2)), start)
		next := tabled(fleet(1, 2))
		change(&next)
		if _, err := n.EditFile(next, start); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: %v", path, err)
		}
		next.Services[0].VIP = netip.MustParseAddr("198.51.100.2")
		edit(t, n, next, start)
	}
	n := &Desired{}
	edit(t, n, tabled(fleet(1, 2)), start)
	next := tabled(fleet(1, 2))
	next.Services[0].Table = model.Table{Entries: 64, IndexBits: 6, IdleTimeout: model.Duration(time.Minute), PacketLimit: 9}
	edit(t, n, next, start)
}

func TestIDsOfAServiceWithATableAreNotGivenAway(t *testing.T) {
	n := &Desired{}
	edit(t, n, tabled(fleet(1, 2)), start)
	edit(t, n, tabled(fleet(2)), start)
	if got := n.Lingering("web"); len(got) != 1 || got[0].ID != 1 {
		t.Fatalf("lingering: %v", got)
	}
	other := tabled(fleet(1, 2))
	other.Services[0].Servers[0].Address = netip.MustParseAddr("10.0.0.9")
	if _, err := n.EditFile(other, start); err == nil || !strings.Contains(err.Error(), "use id 3") {
		t.Errorf("another server took over the id of a removed one: %v", err)
	}
}

// local gives the service a local table.
func local(f model.Fleet) model.Fleet {
	f.Services[0].Affinity = model.AffinityLocal
	return f
}

func TestLocalTablesKnowServersByTheSameIDsAfterAnEdit(t *testing.T) {
	n := &Desired{}
	edit(t, n, local(fleet(1, 2, 3)), start)
	changes := edit(t, n, local(fleet(2, 3)), start)
	if s := n.Running.Service("web"); len(changes) != 1 || s.Servers[0].ID != 2 || s.Servers[1].ID != 3 {
		t.Errorf("%q: servers %+v", changes, s.Servers)
	}
	if got := n.Lingering("web"); len(got) != 1 || got[0].ID != 1 {
		t.Errorf("lingering: %v", got)
	}
	other := local(fleet(1, 2, 3))
	other.Services[0].Servers[0].Address = netip.MustParseAddr("10.0.0.9")
	if _, err := n.EditFile(other, start); err == nil || !strings.Contains(err.Error(), "use id 4") {
		t.Errorf("another server took over the id of a removed one: %v", err)
	}
}

func TestLocalTablesNeedIDsInTheFile(t *testing.T) {
	n, next := &Desired{}, local(fleet(1, 2))
	next.Services[0].Servers[1].ID = 0
	if _, err := n.EditFile(next, start); err == nil || !strings.Contains(err.Error(), "the next free id is 2") {
		t.Errorf("an id would follow from the place in the file: %v", err)
	}
}

func TestAServiceByAnotherNameKeepsTheLayoutOfItsCookies(t *testing.T) {
	cases := map[string]struct {
		edit    func(*model.Service)
		refused string // path
	}{
		"another width":            {func(s *model.Service) { s.CookieBits = 16 }, "services.web2.cookie_bits: "},
		"another index":            {func(s *model.Service) { s.Table.IndexBits = 4 }, "services.web2.table.index_bits: "},
		"another port too":         {func(s *model.Service) { s.Table.IndexBits, s.Ports = 4, []uint16{8080, 80} }, "services.web2.table.index_bits: "},
		"the same layout":          {func(*model.Service) {}, ""},
		"no connections in common": {func(s *model.Service) { s.Table.IndexBits, s.Ports = 4, []uint16{8080} }, ""},
		"another VIP":              {func(s *model.Service) { s.Table.IndexBits, s.VIP = 4, netip.MustParseAddr("198.51.100.2") }, ""},
	}
	for name, c := range cases {
		n := &Desired{}
		edit(t, n, tabled(fleet(1, 2)), start)
		next := tabled(fleet(1, 2))
		next.Services[0].Name = "web2"
		c.edit(&next.Services[0])
		_, err := n.EditFile(next, start)
		if (err != nil) != (c.refused != "") || err != nil && !strings.HasPrefix(err.Error(), c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Promise: Connections are kept, those of removed servers too, when a service is renamed, split or merged or a
// port moves to another service of the VIP and protocol; the change is refused where two servers would have one
// id, and statistics restart.
// Also held by TestAPortThatMovesBetweenServicesKeepsItsConnections.
func TestAServiceByAnotherNameStillKnowsTheServersThatItHad(t *testing.T) {
	named := func(name string, f model.Fleet) model.Fleet {
		f.Services[0].Name = name
		return f
	}
	n := started(t, 1, 2, 3)
	edit(t, n, fleet(2, 3), start)
	edit(t, n, named("shop", fleet(3)), start.Add(time.Hour)) // one server leaves together with the name
	if left := n.Lingering("shop"); len(left) != 2 || left[0].ID != 1 || left[1].ID != 2 || len(n.Lingering("web")) != 0 {
		t.Fatalf("lingering: %v", left)
	}
	if len(n.Past["shop"]) != 2 || n.Past["web"] != nil {
		t.Errorf("past: %v", n.Past)
	}
	other := named("store", fleet(2, 3))
	other.Services[0].Servers[0].Address = netip.MustParseAddr("10.0.0.9")
	if _, err := n.EditFile(other, start); err == nil || !strings.Contains(err.Error(), "services.store.servers.10.0.0.2.id: id 2 is that of") {
		t.Errorf("another server got the id of one that the service had by another name: %v", err)
	}
	if len(n.Lingering("shop")) != 2 {
		t.Errorf("a refused name was taken: %v", n.Removed)
	}
	elsewhere := named("store", fleet(3))
	elsewhere.Services[0].VIP = netip.MustParseAddr("198.51.100.2")
	edit(t, n, elsewhere, start)
	if len(n.Removed) != 0 {
		t.Errorf("a service at another VIP inherited %v", n.Removed)
	}
}

func TestASplitServiceKeepsItsServersInAllParts(t *testing.T) {
	n := &Desired{}
	both := fleet(1, 2, 3)
	both.Services[0].Ports = []uint16{80, 443}
	edit(t, n, both, start)
	part := func(name string, port uint16, ids ...uint16) model.Service {
		s := fleet(ids...).Services[0]
		s.Name, s.Ports = name, []uint16{port}
		return s
	}
	parts := both.Clone()
	parts.Services = []model.Service{part("web80", 80, 1, 2), part("web443", 443, 3)}
	stranger := parts.Clone()
	stranger.Services[1].Servers[0].ID = 1
	if _, err := n.EditFile(stranger, start); err == nil || !strings.Contains(err.Error(), "id 1 is that of 10.0.0.1") || !strings.Contains(err.Error(), "use id 4") {
		t.Errorf("a part gave an id to a stranger: %v", err)
	}
	edit(t, n, parts, start)
	if a, b := n.Lingering("web80"), n.Lingering("web443"); len(a) != 1 || a[0].ID != 3 || len(b) != 2 || b[0].ID != 1 || b[1].ID != 2 {
		t.Errorf("lingering: %v and %v", a, b)
	}
}

func TestAPortThatMovesBetweenServicesKeepsItsConnections(t *testing.T) {
	service := func(name string, ports []uint16, addresses ...byte) model.Service { // ids by order
		s := fleet(1, 2, 3, 4, 5)
		s.Services[0].Name, s.Services[0].Ports = name, ports
		s.Services[0].Servers = s.Services[0].Servers[:len(addresses)]
		for i, address := range addresses {
			server := &s.Services[0].Servers[i]
			server.Address, server.Name = netip.AddrFrom4([4]byte{10, 0, 0, address}), fmt.Sprint("s", address)
		}
		return s.Services[0]
	}
	running := fleet(1)
	running.Services = []model.Service{service("a", []uint16{8081}, 1, 2, 3), service("b", []uint16{8080, 9090}, 3, 1, 2)}
	for name, test := range map[string]struct {
		services []model.Service
		refused  string
		left     []uint16 // ids that the second service still knows of the one whose port it got
	}{
		"to one with other ids":       {[]model.Service{service("b", []uint16{9090}, 3, 1, 2), service("a", []uint16{8081, 8080}, 1, 2, 3)}, "services.a: id 1 is that of", nil},
		"to a new one with other ids": {[]model.Service{service("b", []uint16{9090}, 3, 1, 2), service("c", []uint16{8080}, 1, 2, 3)}, "services.c.servers.s1.id: id 1 is that of s3", nil},
		"to a new one with fewer":     {[]model.Service{service("b", []uint16{9090}, 3, 1, 2), service("c", []uint16{8080}, 3, 1)}, "", []uint16{3}},
		"in turn":                     {[]model.Service{service("a", []uint16{8080}, 1, 2, 3), service("b", []uint16{8081, 9090}, 3, 1, 2)}, "services.a: id 1 is that of", nil},
		"nowhere, and another comes":  {[]model.Service{service("b", []uint16{9090}, 3, 1, 2), service("a", []uint16{8081, 7070}, 1, 2, 3)}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Desired{}
			edit(t, n, running, start)
			next := fleet(1)
			next.Services = test.services
			_, err := n.EditFile(next, start)
			if (err != nil) != (test.refused != "") || err != nil && !strings.HasPrefix(err.Error(), test.refused) {
				t.Fatalf("%v, want %q", err, test.refused)
			}
			var left []uint16
			for _, server := range n.Lingering(test.services[1].Name) {
				left = append(left, server.ID)
			}
			if !slices.Equal(left, test.left) {
				t.Errorf("it still knows %v, want %v", left, test.left)
			}
		})
	}
}

func TestServicesAreMergedIfTheirIDsCanBe(t *testing.T) {
	services := func(second ...uint16) model.Fleet {
		f := fleet(1, 2)
		other := fleet(second...).Services[0]
		other.Name, other.Ports = "tls", []uint16{443}
		f.Services = append(f.Services, other)
		return f
	}
	merged := fleet(1, 2, 3)
	merged.Services[0].Name, merged.Services[0].Ports = "all", []uint16{80, 443}
	n := &Desired{}
	edit(t, n, services(2, 3, 4), start) // server 2 is in both
	edit(t, n, merged, start)
	if left := n.Lingering("all"); len(left) != 1 || left[0].ID != 4 {
		t.Errorf("lingering: %v", left)
	}

	n = &Desired{}
	before := services(2, 3)
	before.Services[1].Servers[0].Address = netip.MustParseAddr("10.0.0.9")
	edit(t, n, before, start)
	if _, err := n.EditFile(merged, start); err == nil || !strings.Contains(err.Error(), "services.all: id 2 is that of") {
		t.Errorf("connections of two servers became those of one: %v", err)
	}
}

func TestASecondTierForLivingCookiesIsRefusedOnceWithWhatHelps(t *testing.T) {
	withNodes := func() model.Fleet {
		f := fleet(1)
		f.Services[0].CookieBits = 0 // as a file that does not say
		f.Nodes = []model.Node{{Name: "lb2", Tier: model.TierSecond, Address: netip.MustParseAddr("192.0.2.2"), ID: 1}}
		return tabled(f)
	}
	n := &Desired{}
	edit(t, n, tabled(fleet(1)), start)
	_, err := n.EditFile(withNodes(), start)
	if err == nil || !strings.HasPrefix(err.Error(), "services.web.table.node_bits: ") || strings.Contains(err.Error(), "keep") {
		t.Errorf("one tier became two: %v", err)
	}
	moved := withNodes()
	moved.Services[0].VIP = netip.MustParseAddr("198.51.100.2")
	edit(t, n, moved, start)
}

func TestNodesOfASecondTierNeedRoomInLivingCookies(t *testing.T) {
	second := []model.Node{{Name: "lb2", Tier: model.TierSecond, Address: netip.MustParseAddr("192.0.2.2"), ID: 1}}
	n := &Desired{}
	edit(t, n, tabled(fleet(1)), start)
	next := fleet(1)
	next.Nodes = second
	if _, err := n.EditFile(tabled(next), start); err == nil || !strings.HasPrefix(err.Error(), "services.web.table.node_bits: ") {
		t.Errorf("cookies without room for nodes were given some: %v", err)
	}
	roomy := fleet(1)
	roomy.Services[0].Affinity, roomy.Services[0].Table.NodeBits = model.AffinityTable, 3
	n = &Desired{}
	edit(t, n, tabled(roomy), start)
	roomy.Nodes = second
	edit(t, n, tabled(roomy), start)
	if n.Running.NodeHealth.Interval == 0 || len(n.Running.Nodes) != 1 {
		t.Errorf("nodes %+v, %+v", n.Running.Nodes, n.Running.NodeHealth)
	}
}

func TestAnEditOfWhatCtlRemovedIsSaidToHaveNoEffect(t *testing.T) {
	n := started(t, 1, 2)
	remove := func(next *Desired) error {
		next.Running.Services[0].Servers = next.Running.Services[0].Servers[1:]
		return nil
	}
	if _, err := n.Change(start, remove); err != nil {
		t.Fatal(err)
	}
	heavier := fleet(1, 2)
	heavier.Services[0].Servers[0].Weight = 7
	if changes := edit(t, n, heavier, start); len(changes) != 1 || !strings.Contains(changes[0], "10.0.0.1") {
		t.Errorf("the edit was reported as %q", changes)
	}
}
