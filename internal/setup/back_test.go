package setup

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// A load balancer that has left the ring of replicas is off it until somebody puts it there again.
func TestALoadBalancerThatWasOnTheRingIsToldHowItComesBackThere(t *testing.T) {
	n := &Node{Role: pki.LB, Name: "lb1", Instance: "default", fleet: &ballastv1.LeavingDrainResponse{Node: &ballastv1.Node{Name: "lb1"}}}
	for _, onRing := range []bool{false, true} {
		n.replicates = onRing
		lines := (&Leave{}).back(n)
		if slices.Contains(lines, "ballast ctl replica undrain lb1") != onRing || !slices.Contains(lines, "ballast ctl node undrain lb1") {
			t.Errorf("on the ring %t: %q", onRing, lines)
		}
	}
}
