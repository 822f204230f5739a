// The management network of a lab: controllers, etcd members, the operator, and an interface of its own on every load balancer and
// server, so that the network that carries control and the one that carries data fail independently.
package world

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Names and numbers of the management network.
const (
	managementNode   = "management" // has the bridge
	manageInterface  = "mgmt"       // of every node that is on it
	operatorNode     = "operator"   // where `ballast ctl` runs
	controlPort      = 6443
	certificatesLife = 24 * time.Hour
)

// ControllerName and MemberName are the nodes of controller and etcd member i (1-based).
func ControllerName(i int) string { return fmt.Sprintf("c%d", i) }
func MemberName(i int) string     { return fmt.Sprintf("e%d", i) }

// manageAddress is where the management network reaches a node.
func manageAddress(node string) netip.Addr {
	if node == operatorNode {
		return netip.MustParseAddr("10.50.5.1")
	}
	kind := strings.TrimRight(node, "0123456789")
	nets := map[string]int{"s": 1, "lb": 2, "c": 3, "e": 4}
	return netip.MustParseAddr(fmt.Sprintf("10.50.%d.%s", nets[kind], node[len(kind):]))
}

// buildManagement joins the nodes to the management network; those that have no namespace yet get one.
func (l *Lab) buildManagement() {
	if !l.Topology.Management {
		return
	}
	l.addSpace(managementNode, nil)
	hub := l.Space(managementNode)
	script.Check(hub.AddBridge(manageInterface, fullMTU))
	own := []string{operatorNode}
	for i := range l.Topology.Controllers {
		own = append(own, ControllerName(i+1))
	}
	for i := range l.Topology.EtcdMembers {
		own = append(own, MemberName(i+1))
	}
	for _, node := range own {
		l.addSpace(node, nil)
	}
	for _, node := range append(own, l.nodesWithDaemons()...) {
		address := netip.PrefixFrom(manageAddress(node), 16)
		script.Check(netspace.Connect(
			netspace.End{Space: l.Space(node), Interface: manageInterface, MTU: fullMTU, Addresses: []netip.Prefix{address}},
			netspace.End{Space: hub, Interface: node, MTU: fullMTU, Bridge: manageInterface}))
	}
	l.certify()
}

// nodesWithDaemons are the load balancers and the servers.
func (l *Lab) nodesWithDaemons() []string {
	var nodes []string
	for i := range l.Topology.LBs {
		nodes = append(nodes, LBName(i+1))
	}
	for i := range l.Topology.Second {
		nodes = append(nodes, SecondName(i+1))
	}
	for i := range l.Topology.Servers {
		nodes = append(nodes, ServerName(i+1))
	}
	return nodes
}

// certify makes an authority and a certificate for every node on the management network.
func (l *Lab) certify() {
	script.Check(pki.Init(l.certificates(), 2*certificatesLife, false))
	for role, count := range map[pki.Role]int{
		pki.LB: l.Topology.LBs, pki.Agent: len(l.Topology.Servers), pki.Controller: l.Topology.Controllers, pki.Ctl: 1,
	} {
		for i := range count {
			request := pki.Request{Role: role, Life: certificatesLife}
			switch role {
			case pki.LB:
				request.Name = LBName(i + 1)
			case pki.Controller:
				request.Name = ControllerName(i + 1)
			case pki.Agent:
				request.Name = ServerName(i + 1)
				request.Addresses = []netip.Addr{l.Topology.ServerAddress(i+1, false), l.Topology.ServerAddress(i+1, true)}
			default:
				request.Name = operatorNode
			}
			request.Addresses = append(request.Addresses, manageAddress(request.Name))
			script.Checkf(pki.Issue(l.certificates(), request), "certify %s", request.Name)
		}
	}
}

// certificates is the directory of all of them: the nodes of a lab share a file system.
func (l *Lab) certificates() string { return filepath.Join(l.dir, "tls") }

// Partition cuts a node off the management network, or heals that.
func (l *Lab) Partition(node string, cut bool) {
	script.Check(l.Space(managementNode).SetLink(node, !cut))
}

// ControlAddresses are where all nodes of a kind are spoken to, as --controller wants them.
func ControlAddresses(name func(int) string, count int) string {
	var all []string
	for i := range count {
		all = append(all, netip.AddrPortFrom(manageAddress(name(i+1)), controlPort).String())
	}
	return strings.Join(all, ",")
}
