package plan

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/model"
)

// row is what packets see of a service now.
func (n *node) row(name string) ServiceRow {
	return n.memory.Service(n.memory.ServiceRow(n.tables.Places()[name].Number))
}

func wantOf(services ...Service) *Want {
	return withPaths(&Want{Keys: testKeys(1), Services: services})
}

func cleared(changes []Change) (tables []ClearTable) {
	for _, change := range changes {
		if c, ok := change.(ClearTable); ok {
			tables = append(tables, c)
		}
	}
	return tables
}

func TestATablesPlaceIsThatOfItsRow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		for range 3 {
			want := anyWant(rt)
			n.update(want)
			for i := range want.Services {
				s := &want.Services[i]
				row, place, blocks := n.row(s.Name), n.tables.Places()[s.Name], uint32(0)
				kept := s.Affinity == model.AffinityTable && want.Tier.Tier != model.TierFirst
				if kept {
					blocks = (s.Table.Entries + 63) / 64
				}
				if row.TableBlocks != blocks || place.Table != (TablePlace{row.TableBase, row.TableBlocks, row.IndexBits}) || kept != (row.IndexBits > 0) {
					rt.Fatalf("%d entries: %d blocks, 2^%d; readers are told %+v", s.Table.Entries, row.TableBlocks, row.IndexBits, place.Table)
				}
				if kept != (model.Affinity(row.Affinity) == model.AffinityTable) {
					rt.Fatalf("affinity %d", row.Affinity)
				}
			}
		}
	})
}

// Whatever changes, a table of the same shape has the entries that it had.
func TestEntriesSurviveEveryChangeButThatOfTheTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		n.update(anyWant(rt))
		before := n.tables.Places()
		blocks := n.memory.blocks.now()
		n.update(anyWant(rt))
		for name, after := range n.tables.Places() {
			was, now := before[name].Table, after.Table
			if before[name].Number != after.Number || was.Blocks != now.Blocks || was.IndexBits != now.IndexBits {
				continue
			}
			if was != now {
				rt.Fatalf("service %s: its table was at %+v, now at %+v", name, was, now)
			}
			for i := range now.Blocks {
				if n.memory.blocks.now()[now.Base+i] != blocks[now.Base+i] {
					rt.Fatalf("service %s: its table was made empty", name)
				}
			}
		}
	})
}

func TestATableIsKeptWhenServersAndSettingsChange(t *testing.T) {
	n := newNode(t)
	s := tableService("a", vipAt(0), 256, 1, 2, 3)
	if tables := cleared(n.update(wantOf(s))); len(tables) != 1 || tables[0].Blocks != 4 || tables[0].IndexBits != 6 {
		t.Fatalf("made empty at first: %+v", tables)
	}
	place := n.tables.Places()["a"].Table
	for what, change := range map[string]func(*Service){
		"servers":    func(s *Service) { s.Servers = append(s.Servers[1:], testServer(40)) },
		"ports":      func(s *Service) { s.Ports = []uint16{80, 443} },
		"dispatch":   func(s *Service) { s.Dispatch = model.DispatchLeast },
		"limit":      func(s *Service) { s.Table.PacketLimit = 1000 },
		"idle":       func(s *Service) { s.Table.IdleTimeout *= 2 },
		"same again": func(*Service) {},
	} {
		change(&s)
		if tables := cleared(n.update(wantOf(s))); len(tables) > 0 || n.tables.Places()["a"].Table != place {
			t.Errorf("%s: %+v", what, tables)
		}
	}
	want := wantOf(s)
	want.Keys, want.Tier = testKeys(1, 2), Tier{Tier: model.TierSecond, ID: 5}
	if tables := cleared(n.update(want)); len(tables) > 0 || n.row("a").Node != 5 {
		t.Errorf("keys and tier: %+v, node %d", tables, n.row("a").Node)
	}
}

func TestATableOfAnotherShapeIsAnotherTable(t *testing.T) {
	n := newNode(t)
	s := tableService("a", vipAt(0), 256, 1, 2, 3)
	n.update(wantOf(s))
	for what, change := range map[string]func(*Service){
		"more entries":  func(s *Service) { s.Table.Entries = 320 },
		"fewer entries": func(s *Service) { s.Table.Entries = 64 },
		"index bits":    func(s *Service) { s.Table.IndexBits = 5 },
	} {
		before := n.tables.Places()["a"].Table
		change(&s)
		changes := n.update(wantOf(s))
		after := n.tables.Places()["a"].Table
		if tables := cleared(changes); len(tables) != 1 || tables[0] != (ClearTable(after)) || after == before {
			t.Fatalf("%s: %+v, now at %+v", what, tables, after)
		}
		if before.Base < after.Base+after.Blocks && after.Base < before.Base+before.Blocks {
			t.Errorf("%s: packets see %+v and %+v at the same time", what, before, after)
		}
	}
	// More often than there is room: what is left is used again.
	for i := range 100 {
		s.Table.Entries = uint32(640 + 64*(i%2))
		n.update(wantOf(s))
	}
	s.Affinity = model.AffinityCookie
	n.update(wantOf(s))
	if place := n.tables.Places()["a"].Table; place != (TablePlace{}) {
		t.Errorf("without affinity table: %+v", place)
	}
}

func TestARestartKeepsEntries(t *testing.T) {
	n := newNode(t)
	want := wantOf(tableService("a", vipAt(0), 256, 1, 2), tableService("b", vipAt(1), 128, 1, 2))
	n.update(want)
	restored, err := Restore(testLimits, n.memory)
	if err != nil {
		t.Fatal(err)
	}
	before := n.tables.Places()
	n.tables = restored
	if changes := n.update(want); len(changes) > 0 {
		t.Fatalf("%+v", changes)
	}
	want.Services = append(want.Services, tableService("c", vipAt(2), 64*64-256-128, 1)) // all that is left, and no more
	tables := cleared(n.update(want))
	for _, name := range []string{"a", "b"} {
		if n.tables.Places()[name].Table != before[name].Table {
			t.Errorf("service %s: %+v", name, n.tables.Places()[name].Table)
		}
	}
	if len(tables) != 1 || tables[0] != (ClearTable{6, 58, 6}) {
		t.Errorf("made empty: %+v", tables)
	}
	want.Services[2].Table.Entries += 64
	if _, err := n.tables.Update(want); err == nil || !strings.Contains(err.Error(), "--max-entries") {
		t.Errorf("one block more than there is: %v", err)
	}
}

func TestWherePlacesWereTakenTheyStayTrue(t *testing.T) {
	n := newNode(t)
	s := tableService("a", vipAt(0), 256, 1)
	n.update(wantOf(s))
	given := n.tables.Places()["a"]
	table, counter := given.Table, given.Counters[1]
	s.Table.Entries, s.Servers = 64, []model.Server{testServer(2)}
	n.update(wantOf(s))
	if given.Table != table || given.Counters[1] != counter || len(given.Counters) != 1 {
		t.Errorf("a place that was given out became %+v", given)
	}
}

func TestCookiesOfTablesHaveTheIDLast(t *testing.T) {
	n := newNode(t)
	n.update(wantOf(testService("cookie", vipAt(0), 1), tableService("table", vipAt(1), 64, 1)))
	if row := n.row("cookie"); row.IDBits != row.CookieBits-1 || row.IDShift != 0 || row.IndexBits != 0 {
		t.Errorf("affinity cookie: %d bits from %d", row.IDBits, row.IDShift)
	}
	if row := n.row("table"); row.IDBits != 6 || row.IDShift != 0 || row.IndexBits != 6 || row.Node != 0 {
		t.Errorf("affinity table: %+v", row)
	}
}

func TestTheLimitIsThatOfAWindowRoundedUp(t *testing.T) {
	for _, c := range []struct {
		perSecond uint32
		inWindow  uint16
	}{{0, 0}, {1, 2}, {100, 108}, {1000, 1074}, {model.MaxPacketLimit, 64425}} {
		exact := float64(c.perSecond) * (1 << 30) / 1e9
		if got := packetsInWindow(c.perSecond); got != c.inWindow || float64(got) != math.Ceil(exact) {
			t.Errorf("%d a second: %d in a window, want %d", c.perSecond, got, c.inWindow)
		}
	}
}

func TestSuspectsVisitTheScrubberWhileItLives(t *testing.T) {
	n := newNode(t)
	s := tableService("a", vipAt(0), 64, 1, 2, 7)
	s.Table.Scrubber = "s7"
	s.Servers[2].Weight = 0
	visits := func(what string, id uint16) {
		t.Helper()
		n.update(wantOf(s))
		if got := n.row("a").Scrubber; got != id {
			t.Errorf("%s: they visit %d, want %d", what, got, id)
		}
		if slices.ContainsFunc(n.memory.Slots(n.row("a").SlotsBase, n.row("a").SlotsCount), func(slot history.Column) bool { return slot.Owners[0] == 7 }) {
			t.Errorf("%s: the scrubber has connections of its own", what)
		}
	}
	visits("healthy", 7)
	s.Down = map[uint16]bool{7: true}
	visits("not healthy", 0)
	s.Down = nil
	s.Servers[2].State = model.StateDraining
	visits("draining", 7)
	s.Servers[2].State = model.StateOff
	visits("off", 0)
	s.Table.Scrubber = ""
	visits("none", 0)
}
