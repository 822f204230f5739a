package controller

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// Promise: Two controllers with one certificate serve and lead the same services, and PROBLEMS, `status` and the
// log name both addresses, unless `--public` gives them one.
func TestControllersThatShareACertificateAreNamed(t *testing.T) {
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	one := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	other := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	third := startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	operator := ca.Issue(pki.Ctl, "me")
	apply(t, one.client(operator))
	named := func(by *running) (names int) {
		answer, err := by.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		for _, n := range answer.Nodes {
			for _, problem := range n.Problems {
				if n.Name == "c1" && strings.Contains(problem, "both serve as c1") && strings.Contains(problem, one.address) && strings.Contains(problem, other.address) {
					names++
				}
			}
		}
		return names
	}
	for _, by := range []*running{one, other, third} {
		fleettest.Await(t, "both are named", func() bool { return named(by) == 1 })
	}
	other.stop()
	for _, by := range []*running{one, third} {
		fleettest.Await(t, "one is alone again", func() bool { return named(by) == 0 })
	}
}
