package modulo

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestSlotsTakeTurnsInTheOrderOfIDs(t *testing.T) {
	shares := []model.Share{{ID: 9, Weight: 1}, {ID: 4, Weight: 200}, {ID: 7}, {ID: 5, Weight: 1}}
	if have, want := Table(7, shares), []uint16{4, 5, 9, 4, 5, 9, 4}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

func TestNobodyOwnsSlotsWithoutServers(t *testing.T) {
	if have := Table(3, []model.Share{{ID: 7}}); !slices.Equal(have, []uint16{0, 0, 0}) {
		t.Errorf("have %v", have)
	}
}
