package bench

import (
	"context"
	"strings"
	"testing"
)

// Loading programs takes longer than all the rest: the tests share them.
func TestTables(t *testing.T) {
	needRoot(t)
	r, err := openTableRig(context.Background(), []uint32{MinChangedFlows})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	t.Run("every cell is measured and every packet accounted for", func(t *testing.T) { testEveryTableCell(t, r) })
	t.Run("a wrong table is refused", func(t *testing.T) { testWrongTable(t, r) })
}

func testEveryTableCell(t *testing.T, r *tableRig) {
	const rounds, repeat = 2, 3 * changesPart * changesBatch
	result, err := r.measureAll(context.Background(), Options{Rounds: rounds, Repeat: repeat, Flows: []uint32{MinChangedFlows}})
	if err != nil {
		t.Fatal(err)
	}
	drawn := []string{"empty", "minimal-ipip", "cookie", "table", "table-at-once", "local-hash", "local-lru"}
	changed := []string{"syn", "table-add", "table-add-scarce", "table-reuse", "table-full", "cookie-end", "table-end",
		"hash-add", "hash-end", "hash-full", "lru-add", "lru-end", "lru-full"}
	if want := len(drawn) + len(changed); len(result.Cells) != want {
		t.Errorf("%d cells, want %d", len(result.Cells), want)
	}
	for _, program := range append(drawn, changed...) {
		c, ok := Find(result.Cells, program, MinChangedFlows)
		if !ok || c.MinNS > c.MedianNS || c.MedianNS > c.MaxNS || c.VerdictCount < rounds*repeat/changesPart {
			t.Errorf("the cell of %s is %+v", program, c)
		}
	}
	for _, m := range result.Memory {
		if m.Map == "connections" && (m.BytesPerEntry < 32 || m.BytesPerEntry > 32.5) {
			t.Errorf("an entry takes %.1f bytes, want 32", m.BytesPerEntry)
		}
	}
	if len(result.Memory) != 4+2 {
		t.Errorf("memory of %d maps: %+v", len(result.Memory), result.Memory)
	}
}

// A table that is not what a cell says must not get a time.
func testWrongTable(t *testing.T, r *tableRig) {
	for _, test := range []struct {
		name, subject string
		spoil         func(s *subject)
		reason        string
	}{
		{"no room", "table-add", func(s *subject) { s.prepare = func() error { r.sizes[0].changing.Prepare(0, 0); return nil } }, "packets were"},
		{"the index of another", "table-add", func(s *subject) { s.check = r.sizes[0].established.checkAdded }, "was given index"},
		{"the index is not checked", "table-add", func(s *subject) { s.check = checkCookie }, "the output is"},
		{"cookies without index", "table", func(s *subject) { s.cell.IndexShift = 0 }, "packets were"},
		{"flows without entries", "local-hash", func(s *subject) { s.cell.Frame[33]++ }, "another length than expected"},
		{"nothing is put back", "table-add-scarce", func(s *subject) { s.changes.restore = nil }, "packets were"},
	} {
		for _, s := range r.subjects(r.sizes[0]) {
			if s.name != test.subject {
				continue
			}
			test.spoil(&s)
			m := &measurement{subject: &s, flows: MinChangedFlows}
			if s.changes != nil {
				m.next = s.changes.batches()
			}
			if err := r.sample(m, 20*changesPart*changesBatch, 1); err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%s: %v, want %q", test.name, err, test.reason)
			}
		}
	}
}
