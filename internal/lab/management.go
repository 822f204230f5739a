// The management network of a lab: controllers, etcd members, the operator, and an interface of its own on every load balancer and
// server, so that the network that carries control and the one that carries data fail independently.
package lab

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Names and numbers of the management network.
const (
	managementNode   = "management" // has the bridge
	manageInterface  = "mgmt"       // of every node that is on it
	operatorNode     = "operator"   // where `ballast ctl` runs
	controlPort      = 6443
	certificatesLife = 24 * time.Hour
)

func controllerName(i int) string { return fmt.Sprintf("c%d", i) }
func memberName(i int) string     { return fmt.Sprintf("e%d", i) }

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
func (l *Lab) buildManagement() error {
	if !l.topo.Management {
		return nil
	}
	if err := l.addSpace(managementNode, nil); err != nil {
		return err
	}
	hub := l.space(managementNode)
	if err := hub.AddBridge(manageInterface, fullMTU); err != nil {
		return err
	}
	own := []string{operatorNode}
	for i := range l.topo.Controllers {
		own = append(own, controllerName(i+1))
	}
	for i := range l.topo.EtcdMembers {
		own = append(own, memberName(i+1))
	}
	for _, node := range own {
		if err := l.addSpace(node, nil); err != nil {
			return err
		}
	}
	for _, node := range append(own, l.nodesWithDaemons()...) {
		address := netip.PrefixFrom(manageAddress(node), 16)
		err := netspace.Connect(
			netspace.End{Space: l.space(node), Interface: manageInterface, MTU: fullMTU, Addresses: []netip.Prefix{address}},
			netspace.End{Space: hub, Interface: node, MTU: fullMTU, Bridge: manageInterface})
		if err != nil {
			return err
		}
	}
	return l.certify()
}

// nodesWithDaemons are the load balancers and the servers.
func (l *Lab) nodesWithDaemons() []string {
	var nodes []string
	for i := range l.topo.LBs {
		nodes = append(nodes, lbName(i+1))
	}
	for i := range l.topo.Second {
		nodes = append(nodes, secondName(i+1))
	}
	for i := range l.topo.Servers {
		nodes = append(nodes, serverName(i+1))
	}
	return nodes
}

// certify makes an authority and a certificate for every node on the management network.
func (l *Lab) certify() error {
	if err := pki.Init(l.certificates(), 2*certificatesLife, false); err != nil {
		return err
	}
	for role, count := range map[pki.Role]int{
		pki.LB: l.topo.LBs, pki.Agent: len(l.topo.Servers), pki.Controller: l.topo.Controllers, pki.Ctl: 1,
	} {
		for i := range count {
			request := pki.Request{Role: role, Life: certificatesLife}
			switch role {
			case pki.LB:
				request.Name = lbName(i + 1)
			case pki.Controller:
				request.Name = controllerName(i + 1)
			case pki.Agent:
				request.Name = serverName(i + 1)
				request.Addresses = []netip.Addr{l.topo.serverAddress(i+1, false), l.topo.serverAddress(i+1, true)}
			default:
				request.Name = operatorNode
			}
			request.Addresses = append(request.Addresses, manageAddress(request.Name))
			if err := pki.Issue(l.certificates(), request); err != nil {
				return fmt.Errorf("certify %s: %w", request.Name, err)
			}
		}
	}
	return nil
}

// certificates is the directory of all of them: the nodes of a lab share a file system.
func (l *Lab) certificates() string { return filepath.Join(l.dir, "tls") }

// partition cuts a node off the management network, or heals that.
func (l *Lab) partition(node string, cut bool) error {
	return l.space(managementNode).SetLink(node, !cut)
}

// controlAddresses are where all nodes of a kind are spoken to, as --controller wants them.
func controlAddresses(name func(int) string, count int) string {
	var all []string
	for i := range count {
		all = append(all, netip.AddrPortFrom(manageAddress(name(i+1)), controlPort).String())
	}
	return strings.Join(all, ",")
}
