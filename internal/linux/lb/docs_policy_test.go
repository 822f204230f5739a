package lb

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// wordsOfClasses shows what awfd draws from; when a server moves to another class, only single words change.
func wordsOfClasses(t *testing.T) map[string]string {
	s := policy(model.DispatchAWFD, 1, 1, 1, 1)
	s.Load.Classes = 2
	w := newWorld(t, s)
	w.reweigh(2, 1, 0, 0)
	row := w.lb.Service(w.lb.ServiceRow(w.tables.Places()["web"].Number))
	classes, members := int(row.Classes), int(row.Members)
	describe := func(i int, word uint64) string {
		switch region := (i - classes) / members; {
		case i < classes:
			return fmt.Sprintf("class %d     numbers up to %#x, members: %d\n", classes-i, uint32(word), word>>32)
		case region == 0:
			return fmt.Sprintf("everybody   id %d\n", uint16(word))
		default:
			return fmt.Sprintf("weight %d    id %d\n", region, uint16(word))
		}
	}
	var have strings.Builder
	for i, word := range w.lb.Rounds(row.RoundsBase, row.RoundsCount) {
		if word != 0 {
			fmt.Fprintf(&have, "word %2d  %s", i, describe(i, word))
		}
	}
	for _, c := range w.reweigh(1, 2, 1, 0) {
		if _, ok := c.(plan.SetTurn); !ok {
			t.Fatalf("%+v is not a change of one word", c)
		}
	}
	return map[string]string{"classes": have.String()}
}
