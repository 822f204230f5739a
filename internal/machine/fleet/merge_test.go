package fleet

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

const minimal = `keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie:
    1: 00112233445566778899aabbccddeeff
services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    servers:
      - name: s1
        address: 10.1.0.11
        id: 1
      - name: s2
        address: 10.1.0.12
        id: 2
      - name: s3
        address: 10.1.0.13
        id: 3
`

func mustParse(t *testing.T, text string) model.Fleet {
	t.Helper()
	fleet, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}

// server returns the server of that name in the only service of minimal.
func server(f *model.Fleet, name string) *model.Server { return f.Services[0].Server(name) }

// Promise: An edited file and changes by `ctl` do not undo each other: the last change of each thing wins.
// Also held by TestAnEditOfTheSameThingWinsOverCtl.
func TestUntouchedLinesNeverUndoACtlChange(t *testing.T) {
	base, running := mustParse(t, minimal), mustParse(t, minimal)
	server(&running, "s2").State = model.StateDraining
	server(&running, "s1").Weight = 7
	running.Services[0].Servers = slices.DeleteFunc(running.Services[0].Servers, func(s model.Server) bool { return s.Name == "s3" })
	edited := mustParse(t, minimal)
	server(&edited, "s1").State = model.StateDraining

	merged, changes := mergeFile(base, edited, running)
	if s1 := server(&merged, "s1"); s1.Weight != 7 || s1.State != model.StateDraining {
		t.Errorf("s1 %+v", s1)
	}
	if server(&merged, "s2").State != model.StateDraining || server(&merged, "s3") != nil {
		t.Errorf("a ctl change was undone: %+v", merged.Services[0].Servers)
	}
	if !slices.Equal(changes, []string{"service web: server s1: state active -> draining"}) {
		t.Errorf("changes %q", changes)
	}
}

func TestAnEditOfTheSameThingWinsOverCtl(t *testing.T) {
	base, edited, running := mustParse(t, minimal), mustParse(t, minimal), mustParse(t, minimal)
	server(&running, "s1").Weight = 7
	server(&edited, "s1").Weight = 9
	merged, changes := mergeFile(base, edited, running)
	if server(&merged, "s1").Weight != 9 || !slices.Equal(changes, []string{"service web: server s1: weight 7 -> 9"}) {
		t.Errorf("weight %d, changes %q", server(&merged, "s1").Weight, changes)
	}
}

func TestServersAndServicesComeAndGoWithTheFile(t *testing.T) {
	base, running := mustParse(t, minimal), mustParse(t, minimal)
	byCtl := model.Server{Name: "s9", Address: running.Services[0].VIP.Next(), ID: 9, Weight: 1}
	running.Services[0].Servers = append(running.Services[0].Servers, byCtl)
	edited := mustParse(t, strings.Replace(minimal, "      - name: s2\n        address: 10.1.0.12\n        id: 2\n", "", 1)+`
      - name: s4
        address: 10.1.0.14
        id: 4
  - name: extra
    vip: 198.51.100.20
    ports: [80]
`)
	merged, changes := mergeFile(base, edited, running)
	if err := merged.Validate(); err != nil {
		t.Error(err)
	}
	want := []string{
		"service web: server s2: removed",
		"service web: server s4: added with address 10.1.0.14, id 4, weight 1, active",
		"service extra: added with 0 servers",
	}
	if !slices.Equal(changes, want) {
		t.Errorf("have %q\nwant %q", changes, want)
	}
	if server(&merged, "s9") == nil {
		t.Error("the server that ctl added is gone")
	}
	merged, changes = mergeFile(edited, mustParse(t, "services: []"), merged)
	if len(merged.Services) != 0 {
		t.Errorf("still there: %+v, changes %q", merged.Services, changes)
	}
}

func TestAnEditOfARemovedServerDoesNotBringItBackAndSaysSo(t *testing.T) {
	base, edited, running := mustParse(t, minimal), mustParse(t, minimal), mustParse(t, minimal)
	running.Services[0].Servers = running.Services[0].Servers[:2]
	server(&edited, "s3").Weight = 9
	merged, changes := mergeFile(base, edited, running)
	if server(&merged, "s3") != nil || !slices.Equal(changes, []string{"service web: server s3: no longer running, so its edit has no effect"}) {
		t.Errorf("%+v, changes %q", merged.Services[0].Servers, changes)
	}
}

func TestKeysRotatedWithCtlSurviveAnEditOfTheFile(t *testing.T) {
	base, edited, running := mustParse(t, minimal), mustParse(t, minimal), mustParse(t, minimal)
	running.Keys.Cookie[2], running.Keys.Current = [16]byte{2}, 2
	edited.Services[0].Dispatch = model.DispatchP2C
	merged, changes := mergeFile(base, edited, running)
	if !reflect.DeepEqual(merged.Keys, running.Keys) || !slices.Equal(changes, []string{"service web: dispatch rr -> p2c"}) {
		t.Errorf("keys %v, changes %q", merged.Keys, changes)
	}
}

func TestKeysRotatedInTheFileAreTakenOver(t *testing.T) {
	base, edited := mustParse(t, minimal), mustParse(t, minimal)
	edited.Keys.Cookie[2], edited.Keys.Current = [16]byte{2}, 2
	merged, changes := mergeFile(base, edited, base)
	if !reflect.DeepEqual(merged.Keys, edited.Keys) || !slices.Equal(changes, []string{"keys: cookie epoch 2 added", "keys: current 1 -> 2"}) {
		t.Errorf("keys %v, changes %q", merged.Keys, changes)
	}
	dropped := edited.Clone()
	delete(dropped.Keys.Cookie, 1)
	merged, changes = mergeFile(edited, dropped, merged)
	if len(merged.Keys.Cookie) != 1 || !slices.Equal(changes, []string{"keys: cookie epoch 1 removed"}) {
		t.Errorf("keys %v, changes %q", merged.Keys, changes)
	}
}

func TestAnotherIDIsAnotherServer(t *testing.T) {
	base, edited := mustParse(t, minimal), mustParse(t, strings.Replace(minimal, "id: 2", "id: 22", 1))
	_, changes := mergeFile(base, edited, base)
	if len(changes) != 2 || !strings.HasSuffix(changes[0], "server s2: removed") || !strings.Contains(changes[1], "server s2: added") {
		t.Errorf("changes %q", changes)
	}
}

// anyFleet draws small fleets over the same few services, servers and values, so that any two of them overlap.
func anyFleet(label string) *rapid.Generator[model.Fleet] {
	return rapid.Custom(func(t *rapid.T) (f model.Fleet) {
		f.Keys.Cookie = make(map[uint32][16]byte)
		for _, epoch := range rapid.SliceOfNDistinct(rapid.Uint32Range(1, 3), 0, 2, rapid.ID[uint32]).Draw(t, "epochs") {
			f.Keys.Cookie[epoch] = [16]byte{rapid.Byte().Draw(t, "key")}
			f.Keys.Current = epoch
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID[string]).Draw(t, label) {
			s := model.Service{Name: name, Affinity: model.Affinity(rapid.Uint8Range(0, 3).Draw(t, "affinity")), TableSlots: rapid.Uint32Range(0, 2).Draw(t, "slots"),
				Table: model.Table{Entries: rapid.Uint32Range(0, 1).Draw(t, "entries"), Scrubber: rapid.SampledFrom([]string{"", "q"}).Draw(t, "scrubber")}}
			for _, id := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 4), 0, 4, rapid.ID[uint16]).Draw(t, "ids") {
				s.Servers = append(s.Servers, model.Server{Name: string(rune('p' + id)), ID: id, Weight: rapid.Uint16Range(0, 2).Draw(t, "weight")})
			}
			f.Services = append(f.Services, s)
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3, rapid.ID[string]).Draw(t, "nodes") {
			f.Nodes = append(f.Nodes, model.Node{Name: name, Tier: model.Tier(rapid.Uint8Range(1, 2).Draw(t, "tier")), ID: rapid.Uint16Range(0, 2).Draw(t, "node id"),
				State: model.ServerState(rapid.Uint8Range(0, 2).Draw(t, "state"))})
		}
		f.Unserved = model.Unserved(rapid.Uint8Range(0, 1).Draw(t, "unserved"))
		f.NodeHealth.Rise = rapid.Uint8Range(0, 2).Draw(t, "rise")
		f.TunnelsFrom = rapid.SampledFrom([][]netip.Addr{nil, {netip.MustParseAddr("192.0.2.1")}, {netip.MustParseAddr("192.0.2.2")}}).Draw(t, "tunnels from")
		return f
	})
}

func TestMergeOfNothingChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, running := anyFleet("base").Draw(t, "base"), anyFleet("running").Draw(t, "running")
		before := running.Clone()
		merged, changes := mergeFile(base, base, running)
		if len(changes) != 0 || len(Diff(running, merged)) != 0 || len(Diff(before, running)) != 0 {
			t.Errorf("changes %q", changes)
		}
	})
}

func TestMergeOntoTheBaseGivesTheEditedFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, edited := anyFleet("base").Draw(t, "base"), anyFleet("edited").Draw(t, "edited")
		merged, changes := mergeFile(base, edited, base)
		if left := Diff(merged, edited); len(left) != 0 {
			t.Errorf("still different: %q", left)
		}
		want := Diff(base, edited) // in the order of edited
		slices.Sort(want)
		slices.Sort(changes)
		if !slices.Equal(changes, want) {
			t.Errorf("have %q, want %q", changes, want)
		}
	})
}

func TestMergeAppliedTwiceIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, edited, running := anyFleet("base").Draw(t, "base"), anyFleet("edited").Draw(t, "edited"), anyFleet("running").Draw(t, "running")
		once, _ := mergeFile(base, edited, running)
		twice, _ := mergeFile(base, edited, once)
		if left := Diff(once, twice); len(left) != 0 {
			t.Errorf("the second merge changed %q", left)
		}
	})
}

const tiered = minimal + `    affinity: table
    table:
      entries: 1024
nodes:
  - name: lb1
    tier: first
  - name: lb2
    tier: second
    address: 192.0.2.2
    id: 1
  - name: lb3
    tier: second
    address: 192.0.2.3
    id: 2
`

func TestANodeDrainedWithCtlStaysSoUnlessTheFileSaysOtherwise(t *testing.T) {
	base, running := mustParse(t, tiered), mustParse(t, tiered)
	running.Node("lb2").State = model.StateDraining
	running.Services[0].Table.PacketLimit = 100
	edited := mustParse(t, strings.Replace(tiered, "entries: 1024", "entries: 2048", 1)+"node_health:\n  rise: 7\n")
	merged, changes := mergeFile(base, edited, running)
	if merged.Node("lb2").State != model.StateDraining || merged.Services[0].Table.PacketLimit != 100 {
		t.Errorf("a ctl change was undone: %+v", merged)
	}
	if !slices.Equal(changes, []string{"service web: table.entries 1024 -> 2048", "node_health: rise 2 -> 7"}) {
		t.Errorf("changes %q", changes)
	}
	edited = mustParse(t, strings.Replace(tiered, "    id: 1\n  - name: lb3", "    id: 1\n    state: off\n  - name: lb4", 1))
	merged, changes = mergeFile(base, edited, running)
	if merged.Node("lb2").State != model.StateOff || merged.Node("lb3") != nil {
		t.Errorf("the edit was not carried out: %+v", merged.Nodes)
	}
	if !slices.Equal(changes, []string{"node lb3: removed", "node lb2: state draining -> off", "node lb4: added with tier second, address 192.0.2.3, id 2, active"}) {
		t.Errorf("changes %q", changes)
	}
}

func TestDiffShowsNoKeys(t *testing.T) {
	a, b := mustParse(t, minimal), mustParse(t, minimal)
	b.Keys.Placement, b.Keys.Cookie[1] = [16]byte{0xab}, [16]byte{0xcd}
	if lines := strings.Join(Diff(a, b), "\n"); lines != "keys: placement changed\nkeys: cookie epoch 1 changed" {
		t.Errorf("have %s", lines)
	}
	if lines := Diff(model.Fleet{}, model.Fleet{Keys: b.Keys}); !slices.Contains(lines, "keys: placement added") {
		t.Errorf("for a first key: %q", lines)
	}
}
