package hub

import (
	"strconv"
	"testing"

	"github.com/ballast-lb/ballast/internal/pki"
)

func TestJoinsAreLimitedForEachRoleAndName(t *testing.T) {
	a := newAdmission(1e-9)
	for range 10 {
		if !a.allows(peerKey{pki.LB, "lb1"}) {
			t.Fatal("one of the first ten joins is refused")
		}
	}
	if a.allows(peerKey{pki.LB, "lb1"}) {
		t.Error("an eleventh join at once is allowed")
	}
	if !a.allows(peerKey{pki.Agent, "lb1"}) || !a.allows(peerKey{pki.LB, "lb2"}) {
		t.Error("another node is refused for the joins of lb1")
	}
}

func TestARefusalIsLoggedOnceForEachHostAndReason(t *testing.T) {
	a := newAdmission(1)
	if !a.logs("10.0.0.1", "no Hello") || !a.logs("10.0.0.2", "no Hello") || !a.logs("10.0.0.1", "wrong role") {
		t.Error("a first refusal is not logged")
	}
	if a.logs("10.0.0.1", "no Hello") {
		t.Error("a refusal is logged again within the hour")
	}
	for i := range 10_000 { // from as many hosts
		a.logs(strconv.Itoa(i), "no Hello")
	}
	if len(a.logged) > 1000 {
		t.Errorf("%d refusals are remembered", len(a.logged))
	}
}
