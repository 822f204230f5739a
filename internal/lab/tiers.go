// Two tiers of load balancers: those that routers know, and behind them those that keep the tables of connections (Cheetah III-B).
package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
)

const (
	secondPrefix = "second"
	metricsPort  = 9435 // of load balancers of the second tier: what the first asks whether they live
	nodeFall     = 4    // checks in a row that fail: a node that a busy machine holds up is not dead
)

func secondName(i int) string { return fmt.Sprintf("%s%d", secondPrefix, i) }

// isSecond tells whether a node is a load balancer of the second tier.
func (l *Lab) isSecond(node string) bool { return strings.HasPrefix(node, secondPrefix) }

func secondAddress(i int) netip.Prefix { return prefix("10.30.3.%d/16", i) }

// buildSecond makes the load balancers that no router leads to: they have one interface, on the fabric.
func (l *Lab) buildSecond() error {
	router := l.space(routerNode)
	for i := 1; i <= l.topo.Second; i++ {
		name := secondName(i)
		if err := l.addSpace(name, nil); err != nil {
			return err
		}
		node := l.space(name)
		err := errors.Join(
			netspace.Connect(
				netspace.End{Space: node, Interface: "eth0", MTU: l.topo.FabricMTU, Addresses: []netip.Prefix{secondAddress(i)}},
				netspace.End{Space: router, Interface: name, MTU: l.topo.FabricMTU, Bridge: fabric}),
			router.AttachXDP(name, l.wire.PassFD()),
			l.leadSecondOut(name))
		if err != nil {
			return err
		}
	}
	return nil
}

// leadSecondOut sets the way out of a load balancer of the second tier, for what it says itself.
func (l *Lab) leadSecondOut(name string) error {
	return l.space(name).Route(anywhere4, 0, netspace.NextHop{Gateway: prefix("10.30.0.254/16").Addr(), Interface: "eth0"})
}

// tierFlags tell a load balancer which node it is, if nodes have names, and let others see whether it lives.
func (l *Lab) tierFlags(node string) []string {
	if l.topo.Second == 0 || l.topo.Management {
		return nil
	}
	flags := []string{"--name", node}
	if l.isSecond(node) {
		flags = append(flags, "--metrics", fmt.Sprintf(":%d", metricsPort))
	}
	return flags
}

// divideTiers writes the nodes of both tiers into the fleet.
func (t *trial) divideTiers() {
	if t.topo.Second == 0 {
		return
	}
	t.fleet.NodeHealth = &serviceHealth{
		Check: "tcp", Port: metricsPort, Interval: checkInterval.String(), Timeout: checkTimeout.String(), Rise: checkRise, Fall: nodeFall,
	}
	for i := range t.topo.LBs {
		t.fleet.Nodes = append(t.fleet.Nodes, fleetNode{Name: lbName(i + 1), Tier: "first"})
	}
	for _, i := range t.setup.second {
		t.addSecond(i)
	}
}

// addSecond adds a load balancer to the second tier; apply makes it so.
func (t *trial) addSecond(i int) {
	t.fleet.Nodes = append(t.fleet.Nodes, fleetNode{
		Name: secondName(i), Tier: "second", Address: secondAddress(i).Addr().String(), ID: uint16(i), State: "active",
	})
	t.second[secondName(i)] = nil
}

// drainSecond ends new connections to a load balancer of the second tier.
func (t *trial) drainSecond(i int) {
	for at := range t.fleet.Nodes {
		if t.fleet.Nodes[at].Name == secondName(i) {
			t.fleet.Nodes[at].State = "draining"
		}
	}
}

// removeSecond takes a load balancer out of the second tier. Its daemon hears of nothing any more.
func (t *trial) removeSecond(i int) {
	t.fleet.Nodes = slices.DeleteFunc(t.fleet.Nodes, func(n fleetNode) bool { return n.Name == secondName(i) })
	delete(t.second, secondName(i))
}

// returnSecond boots a crashed load balancer of the second tier: the first sees by itself that it lives.
func (t *trial) returnSecond(i int) error {
	node := secondName(i)
	t.second[node] = nil
	return errors.Join(t.space(node).SetLink("eth0", true), t.leadSecondOut(node), t.apply())
}
