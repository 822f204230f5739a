package checkroute_test

import (
	"fmt"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A load balancer that is a server, too, has the VIPs itself.
func TestChecksOfVIPsThatThisHostHasReachTheirServer(t *testing.T) {
	for _, mode := range []attach.XDPMode{attach.XDPNative, attach.XDPGeneric} { // generic XDP may lose the link header of answers
		t.Run(string(mode), func(t *testing.T) {
			progtest.BothWays(t, func(t *testing.T) { checksOfOwnVIPs(t, mode) })
		})
	}
}

func checksOfOwnVIPs(t *testing.T, mode attach.XDPMode) {
	n := newCheckNet(t)
	n.balance(mode)
	for _, vip := range n.servers[0].vips {
		n.serve("this host", n.lb, vip)
	}
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		for _, vip := range n.servers[0].vips {
			t.Run(fmt.Sprintf("%s to %s", forward, vip), func(t *testing.T) {
				n.set(vip, vip.Is6(), func(target *checkroute.Target) {
					target.Forward = forward
					n.own(target, n.servers[0].fleet.Keys, func(server int) uint16 { return uint16(server + 1) })
				})
				for i, r := range n.servers {
					taken, restored := progtest.Count(t, r.agent, "decapsulated"), progtest.Count(t, r.agent, "ingress_restored")
					for _, port := range []uint16{plainPort, securePort} {
						if who, err := n.fetch(i, port); who != n.name(i) {
							t.Errorf("a check of %s on port %d is answered by %q: %v", n.name(i), port, who, err)
						}
					}
					if tunnelled := progtest.Count(t, r.agent, "decapsulated") > taken; tunnelled != (forward != model.ForwardL2) {
						t.Errorf("%s was reached through a tunnel: %v", n.name(i), tunnelled)
					}
					if progtest.Count(t, r.agent, "ingress_restored") == restored {
						t.Errorf("%s restored nothing of the checks' connections", n.name(i))
					}
				}
				here := checkroute.Target{VIP: vip, Server: n.path(n.address(0, vip.Is6())).Source, Forward: model.ForwardIPIP, Path: plan.Path{Here: true}}
				targets := map[checkroute.Key]checkroute.Target{n.key(0): here}
				progtest.Check(t, n.lb.Do(func() error { return n.checks.Set(targets) }))
				for _, port := range []uint16{plainPort, securePort} {
					if who, err := n.fetch(0, port); who != "this host" {
						t.Errorf("a check of this host is answered by %q: %v", who, err)
					}
				}
			})
		}
	}
}
