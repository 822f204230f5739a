package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// withAffinity is a service as people configure it, with an affinity: what else that needs, and nothing more. Those that know nothing of a connection
// go by maglev, the fallback is hash.
func withAffinity(t *testing.T, affinity model.Affinity, protocol model.Protocol) model.Fleet {
	t.Helper()
	f := fleet(1, 2)
	s := &f.Services[0]
	s.Protocol, s.Affinity, s.Dispatch, s.Fallback = protocol, affinity, model.DispatchMaglev, model.FallbackHash
	switch affinity {
	case model.AffinityTable:
		s.Fallback = model.FallbackSecondChance
	case model.AffinityHistory:
		s.Dispatch, s.Fallback = model.DispatchChoices, model.FallbackSecondChance
	}
	f.ApplyDefaults()
	if err := f.Validate(); err != nil && affinity != model.AffinityReplicated {
		t.Fatalf("%s: %v", affinity, err)
	}
	return f
}

// Promise: A change of affinity that breaks connections says of each pair which and how many, and those that keep all ask nothing: docs/run/configure.md has
// the table of pairs.
func TestWhatBecomesOfConnectionsWhoseAffinityChanges(t *testing.T) {
	tcp := []model.Affinity{model.AffinityHash, model.AffinityCookie, model.AffinityTable, model.AffinityLocal, model.AffinityHistory, model.AffinityReplicated}
	udp := []model.Affinity{model.AffinityHash, model.AffinityLocal, model.AffinityReplicated, model.AffinityQUIC}
	for protocol, pairs := range map[model.Protocol]struct {
		affinities []model.Affinity
		keeps      string // pairs of which none breaks
		some       string // of which those break whose slots have had another server
	}{
		model.ProtocolTCP: {tcp, "hash local-table, hash replicated, cookie table, table cookie",
			"cookie hash, cookie local-table, cookie replicated, local-table hash, local-table replicated, replicated hash, replicated local-table"},
		model.ProtocolUDP: {udp, "hash local-table, hash replicated", "local-table hash, local-table replicated, replicated hash, replicated local-table, quic hash, quic local-table, quic replicated"},
	} {
		for _, from := range pairs.affinities {
			for _, to := range pairs.affinities {
				a, b := withAffinity(t, from, protocol), withAffinity(t, to, protocol)
				pair, want := fmt.Sprintf("%s %s", from, to), "of 21 connections all break: "
				in := func(list string) bool { return slices.Contains(strings.Split(list, ", "), pair) }
				switch {
				case from == to || in(pairs.keeps):
					want = ""
				case in(pairs.some):
					want = "of 21 connections some break: "
				}
				counts := func(live uint64, known, exact bool) livingOf {
					return func(string, uint16) Connections { return Connections{Live: live, Known: known, Exact: exact} }
				}
				lines := Dangers(&a, &b, nil, counts(7, true, true))
				if !slices.Equal(lines, Breaking(&a, &b, counts(7, true, true))) {
					t.Errorf("%s %s: by file and by API they differ", protocol, pair)
				}
				line := strings.Join(lines, "; ")
				if want == "" && line != "" || want != "" && (!strings.HasPrefix(line, fmt.Sprintf("service web: affinity %s -> %s: %s", from, to, want)) || !strings.HasSuffix(line, otherVIP)) {
					t.Errorf("%s %s: %q, want %q", protocol, pair, line, want)
				}
				if lines := Dangers(&a, &b, nil, counts(0, true, true)); len(lines) != 0 {
					t.Errorf("%s %s: where none lives: %q", protocol, pair, lines)
				}
				for said, unsure := range map[string]livingOf{"about 0 connections": counts(0, true, false), "connections that nobody counts": counts(0, false, false)} {
					if line := strings.Join(Dangers(&a, &b, nil, unsure), "; "); want != "" && !strings.Contains(line, said) {
						t.Errorf("%s %s: where that is not known: %q", protocol, pair, line)
					}
				}
			}
		}
	}
}

// Where the table of slots changes with the affinity, or the past of slots is not asked any more, connections of hash are not found either.
func TestConnectionsOfHashAreFoundByTheSameTableOfSlotsAlone(t *testing.T) {
	lives := func(string, uint16) Connections { return Connections{Live: 7, Known: true, Exact: true} }
	changes := map[string]func(s *model.Service){
		"dispatch":    func(s *model.Service) { s.Dispatch = model.DispatchWCMP },
		"table_slots": func(s *model.Service) { s.TableSlots = 4099 },
		"placement": func(s *model.Service) {
			s.Placement = model.Placement{Over: model.PlaceSource, IPv4Prefix: 32, IPv6Prefix: 64}
		},
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		a, b := withAffinity(t, model.AffinityHash, model.ProtocolTCP), withAffinity(t, model.AffinityLocal, model.ProtocolTCP)
		changes[name](&b.Services[0])
		if lines := Breaking(&a, &b, lives); len(lines) != 1 || !strings.Contains(lines[0], "all break") {
			t.Errorf("%s: %q", name, lines)
		}
	}
	a, b := withAffinity(t, model.AffinityHash, model.ProtocolTCP), withAffinity(t, model.AffinityLocal, model.ProtocolTCP)
	a.Services[0].Fallback = model.FallbackSecondChance
	if lines := Breaking(&a, &b, lives); len(lines) != 1 {
		t.Errorf("without second chance: %q", lines)
	}
	a, b = withAffinity(t, model.AffinityCookie, model.ProtocolTCP), withAffinity(t, model.AffinityHash, model.ProtocolTCP)
	a.Services[0].Return, b.Services[0].Return = model.ReturnThrough, model.ReturnThrough
	if lines := Breaking(&a, &b, lives); len(lines) != 1 || !strings.Contains(lines[0], "all break: their clients have timestamps") {
		t.Errorf("cookies that load balancers write: %q", lines)
	}
	a, b = withAffinity(t, model.AffinityHash, model.ProtocolTCP), withAffinity(t, model.AffinityLocal, model.ProtocolTCP)
	b.Services[0].Dispatch = model.DispatchRR // new connections alone go by it
	if lines := Breaking(&a, &b, lives); lines != nil {
		t.Errorf("tcp by rr: %q", lines)
	}
	a, b = withAffinity(t, model.AffinityHash, model.ProtocolUDP), withAffinity(t, model.AffinityLocal, model.ProtocolUDP)
	b.Services[0].Dispatch = model.DispatchRR // and every flow of UDP looks new
	if lines := Breaking(&a, &b, lives); len(lines) != 1 {
		t.Errorf("udp by rr: %q", lines)
	}
}

// Promise: Connections of servers that were removed count, too: they break as the others do.
func TestAnAffinityIsAskedAboutWhereRemovedServersAloneHaveConnections(t *testing.T) {
	removed := func(_ string, id uint16) Connections {
		if id == OfRemoved {
			return Connections{Live: 5, Known: true, Exact: true}
		}
		return Connections{Known: true, Exact: true}
	}
	a, b := withAffinity(t, model.AffinityCookie, model.ProtocolTCP), withAffinity(t, model.AffinityHash, model.ProtocolTCP)
	for how, lines := range map[string][]string{"by file": Breaking(&a, &b, removed), "by API": Dangers(&a, &b, nil, removed)} {
		if len(lines) != 1 || !strings.Contains(lines[0], "of 5 connections some break: ") {
			t.Errorf("%s: %q", how, lines)
		}
	}
}

// Promise: A service that gets another name with another affinity is asked about as one that keeps its name is.
func TestAnAffinityIsAskedAboutUnderAnotherName(t *testing.T) {
	lives := func(_ string, id uint16) Connections {
		if id == OfRemoved {
			return Connections{Known: true, Exact: true}
		}
		return Connections{Live: 7, Known: true, Exact: true}
	}
	a, b := withAffinity(t, model.AffinityCookie, model.ProtocolTCP), withAffinity(t, model.AffinityHash, model.ProtocolTCP)
	b.Services[0].Name = "shop"
	for how, lines := range map[string][]string{"by file": Breaking(&a, &b, lives), "by API": Dangers(&a, &b, nil, lives)} {
		if len(lines) != 1 || !strings.HasPrefix(lines[0], "service shop (was web): affinity cookie -> hash: of 14 connections some break: ") {
			t.Errorf("%s: %q", how, lines)
		}
	}
	b.Services[0].Affinity = model.AffinityTable
	if lines := Dangers(&a, &b, nil, lives); lines != nil {
		t.Errorf("one that keeps all: %q", lines)
	}
	b.Services[0].Affinity, b.Services[0].Ports = model.AffinityHash, []uint16{a.Services[0].Ports[0] + 1}
	if lines := Breaking(&a, &b, lives); lines != nil {
		t.Errorf("at another port it takes nothing over: %q", lines)
	}
}

// Promise: With affinity hash, a change of dispatch, table_slots, placement or fallback by which connections are not found any more is asked about.
func TestWhatBecomesOfConnectionsOfHashWhoseTableOfSlotsChanges(t *testing.T) {
	lives := func(_ string, id uint16) Connections {
		if id == OfRemoved {
			return Connections{Known: true, Exact: true}
		}
		return Connections{Live: 7, Known: true, Exact: true}
	}
	chance := func(f model.Fallback) func(*model.Service) { return func(s *model.Service) { s.Fallback = f } }
	none, again := chance(model.FallbackHash), chance(model.FallbackSecondChance)
	wcmp := func(s *model.Service) { s.Dispatch = model.DispatchWCMP }
	slots := func(n uint32) func(*model.Service) { return func(s *model.Service) { s.TableSlots = n } }
	source := func(s *model.Service) {
		s.Placement = model.Placement{Over: model.PlaceSource, IPv4Prefix: 32, IPv6Prefix: 64}
	}
	for name, test := range map[string]struct {
		before, change []func(*model.Service)
		want           string // of the line, between the name of the service and why; empty: nobody is asked
	}{
		"nothing":                     {nil, nil, ""},
		"dispatch":                    {nil, []func(*model.Service){wcmp}, "dispatch maglev -> wcmp: of 14 connections most break: "},
		"table_slots":                 {nil, []func(*model.Service){slots(251)}, "table_slots 4093 -> 251: of 14 connections most break: "},
		"the end of second chance":    {[]func(*model.Service){again}, []func(*model.Service){none}, "fallback second-chance -> hash: of 14 connections some break: "},
		"second chance":               {nil, []func(*model.Service){again}, ""},
		"dispatch, with it":           {[]func(*model.Service){again}, []func(*model.Service){wcmp}, ""},
		"dispatch, and it begins":     {nil, []func(*model.Service){wcmp, again}, ""},
		"dispatch, and it ends":       {[]func(*model.Service){again}, []func(*model.Service){wcmp, none}, "dispatch maglev -> wcmp, fallback second-chance -> hash: of 14 connections most break: "},
		"more slots, with it":         {[]func(*model.Service){again}, []func(*model.Service){slots(8191)}, ""},
		"fewer slots, with it":        {[]func(*model.Service){again}, []func(*model.Service){slots(251)}, "table_slots 4093 -> 251: of 14 connections some break: "},
		"placement, with it":          {[]func(*model.Service){again}, []func(*model.Service){source}, "placement.over connection -> source"},
		"something else of no weight": {nil, []func(*model.Service){func(s *model.Service) { s.SlowStart = 60 }}, ""},
	} {
		a, b := withAffinity(t, model.AffinityHash, model.ProtocolTCP), withAffinity(t, model.AffinityHash, model.ProtocolTCP)
		for _, change := range test.before {
			change(&a.Services[0])
			change(&b.Services[0])
		}
		for _, change := range test.change {
			change(&b.Services[0])
		}
		lines := Dangers(&a, &b, nil, lives)
		if !slices.Equal(lines, Breaking(&a, &b, lives)) {
			t.Errorf("%s: by file and by API they differ", name)
		}
		if (test.want == "") != (len(lines) == 0) || test.want != "" && !strings.HasPrefix(lines[0], "service web: "+test.want) {
			t.Errorf("%s: %q, want %q", name, lines, test.want)
		}
		if lines := Dangers(&a, &b, nil, func(string, uint16) Connections { return Connections{Known: true, Exact: true} }); lines != nil {
			t.Errorf("%s, where none lives: %q", name, lines)
		}
	}
	a, b := withAffinity(t, model.AffinityHash, model.ProtocolTCP), withAffinity(t, model.AffinityHash, model.ProtocolTCP)
	wcmp(&b.Services[0])
	a.Services[0].Servers, b.Services[0].Servers = a.Services[0].Servers[:1], b.Services[0].Servers[:1]
	if lines := Dangers(&a, &b, nil, lives); lines != nil {
		t.Errorf("a single server: %q", lines)
	}
}
