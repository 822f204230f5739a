package fleet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// with is a fleet whose only service has servers, "NAME ADDRESS" or "-NAME ADDRESS" of one that drains, with ids as controllers give them: by address.
func with(affinity model.Affinity, servers ...string) *model.Fleet {
	s := model.NewService()
	s.Name, s.Protocol, s.Affinity, s.VIP, s.Ports = "web", model.ProtocolTCP, affinity, netip.MustParseAddr("198.51.100.10"), []uint16{80}
	for _, text := range servers {
		name, address, _ := strings.Cut(text, " ")
		server := model.NewServer()
		server.Name, server.Address = strings.TrimPrefix(name, "-"), netip.MustParseAddr(address)
		server.ID = uint16(server.Address.As4()[3])
		if !affinity.KeepsIDs() {
			server.ID = uint16(name[len(name)-1])
		}
		if strings.HasPrefix(name, "-") {
			server.State = model.StateDraining
		}
		s.Servers = append(s.Servers, server)
	}
	f := &model.Fleet{Services: []model.Service{s}}
	f.ApplyDefaults()
	return f
}

// Promise: Other addresses for servers with living connections, or for more than a third of a service's servers, are asked about with the number of connections,
// whatever the names of servers.
func TestOtherAddressesInThePlaceOfServersAreAskedAbout(t *testing.T) {
	counts := func(live uint64, known, exact bool) livingOf {
		return func(_ string, id uint16) Connections {
			if id == OfRemoved {
				return Connections{Known: true, Exact: true}
			}
			return Connections{Live: live, Known: known, Exact: exact}
		}
	}
	two, cookie := []string{"s1 10.0.0.1", "s2 10.0.0.2"}, model.AffinityCookie
	four := []string{"s1 10.0.0.1", "s2 10.0.0.2", "s3 10.0.0.3", "s4 10.0.0.4"}
	const stay = " stay with the old servers until they end, and break if those are gone: "
	for name, test := range map[string]struct {
		a, b   *model.Fleet
		living livingOf
		want   []string // parts of the only line; nil: nobody is asked
	}{
		"all under their names": {with(cookie, two...), with(cookie, "s1 10.0.0.8", "s2 10.0.0.9"), counts(3, true, true),
			[]string{"place of 2 of its 2 servers (s1 10.0.0.1 -> 10.0.0.8, s2 10.0.0.2 -> 10.0.0.9): nobody has seen them answer; 6 connections" + stay}},
		"all, none lives":        {with(cookie, two...), with(cookie, "s1 10.0.0.8", "s2 10.0.0.9"), counts(0, true, true), []string{": nobody has seen them answer: "}},
		"all by other names":     {with(cookie, two...), with(cookie, "a 10.0.0.8", "b 10.0.0.9"), counts(3, true, true), []string{"(s1 10.0.0.1, s2 10.0.0.2): nobody has seen them answer; 6 connections"}},
		"names are addresses":    {with(cookie, "10.0.0.1 10.0.0.1"), with(cookie, "10.0.0.9 10.0.0.9"), counts(3, true, true), []string{"(10.0.0.1): nobody has seen them answer; 3 connections"}},
		"names change places":    {with(cookie, two...), with(cookie, "s2 10.0.0.1", "s1 10.0.0.2"), counts(3, true, true), nil},
		"one of four lives":      {with(cookie, four...), with(cookie, append([]string{"s1 10.0.0.9"}, four[1:]...)...), counts(5, true, true), []string{"place of 1 of its 4 servers (s1 10.0.0.1 -> 10.0.0.9): nobody has seen them answer; 5 connections" + stay}},
		"one of four, about 0":   {with(cookie, four...), with(cookie, append([]string{"s1 10.0.0.9"}, four[1:]...)...), counts(0, true, false), nil},
		"one of four, unknown":   {with(cookie, four...), with(cookie, append([]string{"s1 10.0.0.9"}, four[1:]...)...), counts(0, false, false), []string{"connections that nobody counts" + stay}},
		"one of four, replaced":  {with(cookie, four...), with(cookie, append([]string{"s9 10.0.0.9"}, four[1:]...)...), counts(5, true, true), nil},
		"one goes, none comes":   {with(cookie, two...), with(cookie, two[0]), counts(5, true, true), nil},
		"one comes":              {with(cookie, two...), with(cookie, append([]string{"s9 10.0.0.9"}, two...)...), counts(5, true, true), nil},
		"drained ones make room": {with(cookie, "-s1 10.0.0.1", "-s2 10.0.0.2", "s3 10.0.0.3"), with(cookie, "s3 10.0.0.3", "s4 10.0.0.4", "s5 10.0.0.5"), counts(5, true, true), nil},
		"a drained one moves":    {with(cookie, "-s1 10.0.0.1", "s2 10.0.0.2"), with(cookie, "s1 10.0.0.9", "s2 10.0.0.2"), counts(5, true, true), []string{"; 5 connections" + stay}},
		"by hash they break":     {with(model.AffinityHash, two...), with(model.AffinityHash, "s1 10.0.0.8", "s2 10.0.0.2"), counts(5, true, true), []string{"; 5 connections break, as affinity hash"}},
	} {
		for how, lines := range map[string][]string{"by API": Dangers(test.a, test.b, nil, test.living), "by file": Breaking(test.a, test.b, test.living)} {
			if len(lines) != min(len(test.want), 1) {
				t.Errorf("%s, %s: %q", name, how, lines)
				continue
			}
			for _, part := range test.want {
				if !strings.HasPrefix(lines[0], "service web: ") || !strings.Contains(lines[0], part) || !strings.Contains(lines[0], "add them beside the old ones, drain those") {
					t.Errorf("%s, %s: %q, want %q", name, how, lines[0], part)
				}
			}
		}
	}
	b := with(cookie, "s1 10.0.0.8", "s2 10.0.0.9")
	b.Services[0].Name = "shop"
	if lines := Dangers(with(cookie, two...), b, nil, counts(3, true, true)); len(lines) != 1 || !strings.HasPrefix(lines[0], "service shop (was web): other addresses") {
		t.Errorf("by another name: %q", lines)
	}
	off := with(cookie, two...)
	off.Services[0].Servers[0].State = model.StateOff
	if lines := Dangers(off, with(cookie, "s1 10.0.0.8", "s2 10.0.0.2"), nil, counts(3, true, true)); lines != nil {
		t.Errorf("one that was off: %q", lines)
	}
	for affinity, want := range map[model.Affinity]string{
		cookie:             "service web: server s1: 3 connections stay until they end",
		model.AffinityHash: "service web: server s1: 3 connections break: 10.0.0.8 is another machine",
	} {
		if lines := Living(with(affinity, two...), with(affinity, "s1 10.0.0.8", "s2 10.0.0.2"), counts(3, true, true)); !slices.Equal(lines, []string{want}) {
			t.Errorf("%s: %q", affinity, lines)
		}
	}
}

// Promise: A port or VIP that goes, and whatever else breaks connections, is asked about with their number, and with how to keep them.
func TestWhatBreaksConnectionsSaysHowManyAndHowToKeepThem(t *testing.T) {
	lives := func(_ string, id uint16) Connections {
		if id == OfRemoved {
			return Connections{Known: true, Exact: true}
		}
		return Connections{Live: 3, Known: true, Exact: true}
	}
	for name, test := range map[string]struct {
		change func(s *model.Service)
		want   string
	}{
		"another port": {func(s *model.Service) { s.Ports = []uint16{81} },
			"port 80 goes: of 6 connections those there end: to keep them, serve both (ports: [80, 81]) until clients have moved and their connections have ended, then remove it"},
		"another vip": {func(s *model.Service) { s.VIP = netip.MustParseAddr("198.51.100.99") }, "vip or protocol changes: its 6 connections break: " + otherVIP},
		"the return":  {func(s *model.Service) { s.Return = model.ReturnThrough }, "return direct -> through: its 6 connections break: " + otherVIP},
	} {
		a, b := with(model.AffinityCookie, "s1 10.0.0.1", "s2 10.0.0.2"), with(model.AffinityCookie, "s1 10.0.0.1", "s2 10.0.0.2")
		test.change(&b.Services[0])
		if lines := Dangers(a, b, nil, lives); !slices.Equal(lines, []string{"service web: " + test.want}) {
			t.Errorf("%s: %q", name, lines)
		}
	}
}
