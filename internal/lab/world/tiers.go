// Two tiers of load balancers: those that routers know, and behind them those that keep the tables of connections (Cheetah III-B).
package world

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	secondPrefix = "second"
	metricsPort  = 9435 // of load balancers of the second tier: what the first asks whether they live
	nodeFall     = 4    // checks in a row that fail: a node that a busy machine holds up is not dead
)

// SecondName is the node of load balancer i (1-based) of the second tier.
func SecondName(i int) string { return fmt.Sprintf("%s%d", secondPrefix, i) }

// isSecond tells whether a node is a load balancer of the second tier.
func (l *Lab) isSecond(node string) bool { return strings.HasPrefix(node, secondPrefix) }

func secondAddress(i int) netip.Prefix { return prefix("10.30.3.%d/16", i) }

// buildSecond makes the load balancers that no router leads to: they have one interface, on the fabric.
func (l *Lab) buildSecond() {
	router := l.Space(RouterNode)
	for i := 1; i <= l.Topology.Second; i++ {
		name := SecondName(i)
		l.addSpace(name, nil)
		node := l.Space(name)
		script.Check(netspace.Connect(
			netspace.End{Space: node, Interface: "eth0", MTU: l.Topology.FabricMTU, Addresses: []netip.Prefix{secondAddress(i)}},
			netspace.End{Space: router, Interface: name, MTU: l.Topology.FabricMTU, Bridge: fabric}))
		script.Check(router.AttachXDP(name, l.wire.PassFD()))
		l.leadSecondOut(name)
	}
}

// leadSecondOut sets the way out of a load balancer of the second tier, for what it says itself.
func (l *Lab) leadSecondOut(name string) {
	script.Check(l.Space(name).Route(anywhere4, 0, netspace.NextHop{Gateway: prefix("10.30.0.254/16").Addr(), Interface: "eth0"}))
}

// tierFlags tell a load balancer which node it is, if nodes have names, and let others see whether it lives.
func (l *Lab) tierFlags(node string) []string {
	if l.Topology.Second == 0 && l.Topology.Routing.Daemon == "" || l.Topology.Management {
		return nil
	}
	flags := []string{"--name", node}
	if l.isSecond(node) {
		flags = append(flags, "--metrics", fmt.Sprintf(":%d", metricsPort))
	}
	return flags
}

// divideTiers writes the nodes of both tiers into the fleet.
func (t *Trial) divideTiers() {
	if t.Topology.Second == 0 {
		return
	}
	t.Fleet.NodeHealth = Checks(model.CheckTCP)
	t.Fleet.NodeHealth.Port, t.Fleet.NodeHealth.Fall = metricsPort, nodeFall
	for i := range t.Topology.LBs {
		t.Fleet.Nodes = append(t.Fleet.Nodes, model.Node{Name: LBName(i + 1), Tier: model.TierFirst})
	}
	for _, i := range t.Setup.Second {
		t.AddSecond(i)
	}
}

// AddSecond adds a load balancer to the second tier; apply makes it so.
func (t *Trial) AddSecond(i int) {
	t.Fleet.Nodes = append(t.Fleet.Nodes, model.Node{Name: SecondName(i), Tier: model.TierSecond, Address: secondAddress(i).Addr(), ID: uint16(i)})
	t.Second[SecondName(i)] = nil
}

// DrainSecond ends new connections to a load balancer of the second tier.
func (t *Trial) DrainSecond(i int) {
	t.Fleet.Node(SecondName(i)).State = model.StateDraining
}

// RemoveSecond takes a load balancer out of the second tier. Its daemon hears of nothing any more.
func (t *Trial) RemoveSecond(i int) {
	t.Fleet.Nodes = slices.DeleteFunc(t.Fleet.Nodes, func(n model.Node) bool { return n.Name == SecondName(i) })
	delete(t.Second, SecondName(i))
}

// ReturnSecond boots a crashed load balancer of the second tier: the first sees by itself that it lives.
func (t *Trial) ReturnSecond(i int) {
	node := SecondName(i)
	t.Second[node] = nil
	script.Check(t.Space(node).SetLink("eth0", true))
	t.leadSecondOut(node)
	t.Apply()
}
