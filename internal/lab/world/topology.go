// What a lab's network looks like, as a value.
//
//	client ---- router ==(ECMP)== lb1..lbN
//	              |                   |
//	              +----- fabric ------+---- s1..sM      (one bridge, inside the router's namespace)
//	              |                   +---- second1..secondK
//	              +----- own subnet ------- a far server (behind the router, with its own MTU)
package world

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
)

// Names of the nodes that every lab has.
const (
	ClientNode = "client"
	RouterNode = "router"
	wireNode   = "wire" // on the clients' link, when it is slow
	fabric     = "fabric"

	managementNode = "management" // has the bridge
	operatorNode   = "operator"   // where `ballast ctl` runs
	secondPrefix   = "second"
)

// A Topology is one network. The zero value of a field means its default.
type Topology struct {
	LBs     int
	Second  int // load balancers behind the others, on the fabric alone
	Servers []ServerNode
	Former  bool // there is a host more, as those of load balancers are, for what had the VIPs before; the router is told by Routes.Send
	Both    bool // the first servers are on the load balancers' hosts: s1 on lb1, and so on. Not with Management
	VIPs    []netip.Addr
	Sources int // addresses that clients connect from; default 16

	FabricMTU         int               // default 1600: room for encapsulation around 1500
	ClientMTU         int               // of the router's route to the clients; default 1500
	RoutesHideMTU     bool              // LBs learn the MTU of far servers from ICMP alone
	ClientDelay       time.Duration     // of every frame to and from clients, each way
	ClientHelloFaults []slowlink.Fault  // of ClientHellos on their way from clients
	ClientSysctls     map[string]string // beyond the lab's own
	MPTCP             bool              // servers and clients speak it, and clients have another address
	AnswersThrough    bool              // servers answer by an LB instead of by the router
	Functions         int               // so many servers, the first ones, translate addresses: clients reach the others through them

	Routing Routing // how the router learns its routes to VIPs
	Segment bool    // it has none to learn: VIPs are on the fabric, where load balancers announce them by ARP and Neighbor Discovery

	Management  bool // there is a management network
	Controllers int  // on it
	EtcdMembers int  // on it
	Relays      bool // load balancers reach their one controller by relays, which can lose weights
}

// A ServerNode is one server of a topology.
type ServerNode struct {
	FarMTU  int               // not 0: in a subnet of its own behind the router, on a link with this MTU
	Sysctls map[string]string // beyond the lab's own

	App           *AppServer // what runs there; nil: nginx
	BitsPerSecond int64      // that leave by its link; 0: not limited
}

// The lab's addresses.
var (
	anywhere4 = netip.MustParsePrefix("0.0.0.0/0")
	anywhere6 = netip.MustParsePrefix("::/0")
)

var (
	fabricGateway = [2]netip.Prefix{prefix("10.30.0.254/16"), prefix("fd30::fe/64")} // the router's on the fabric
	clientGateway = [2]netip.Prefix{prefix("10.10.0.254/16"), prefix("fd10::fe/64")} // and on the clients' link
)

func prefix(format string, arguments ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, arguments...))
}

// The nodes of load balancer, server, load balancer of the second tier, controller and etcd member i (1-based).
func LBName(i int) string         { return fmt.Sprintf("lb%d", i) }
func ServerName(i int) string     { return fmt.Sprintf("s%d", i) }
func SecondName(i int) string     { return fmt.Sprintf("%s%d", secondPrefix, i) }
func ControllerName(i int) string { return fmt.Sprintf("c%d", i) }
func MemberName(i int) string     { return fmt.Sprintf("e%d", i) }

// former is the number of the host of what had the VIPs before: that of one load balancer more.
func (t *Topology) former() int { return t.LBs + 1 }

// isSecond reports whether a node is a load balancer of the second tier.
func isSecond(node string) bool { return strings.HasPrefix(node, secondPrefix) }

// home is the node whose host a node is on: its own, or that of a load balancer.
func (t *Topology) home(node string) string {
	for i := 1; t.Both && i <= t.LBs; i++ {
		if node == ServerName(i) {
			return LBName(i)
		}
	}
	return node
}

// names are those of so many nodes of a kind.
func names(name func(i int) string, count int) (all []string) {
	for i := range count {
		all = append(all, name(i+1))
	}
	return all
}

// ServerAddress is where the fabric reaches server i (1-based).
func (t *Topology) ServerAddress(i int, v6 bool) netip.Addr {
	far := t.Servers[i-1].FarMTU != 0
	switch {
	case far && v6:
		return prefix("fd40:0:0:%x::2/64", i).Addr()
	case far:
		return prefix("10.40.%d.2/24", i).Addr()
	case v6:
		return prefix("fd30::1:%x/64", i).Addr()
	default:
		return prefix("10.30.1.%d/16", i).Addr()
	}
}

// SourceAddresses are the clients' addresses of the family of vip.
func (t *Topology) SourceAddresses(v6 bool) []string {
	var sources []string
	for i := 1; i <= t.Sources; i++ {
		if v6 {
			sources = append(sources, prefix("fd10::1:%x/64", i).Addr().String())
		} else {
			sources = append(sources, prefix("10.10.1.%d/16", i).Addr().String())
		}
	}
	return sources
}

// Outside is the address of a server that clients reach through functions, 1 being the first.
func (t *Topology) Outside(i int) string { return t.ServerAddress(t.Functions+i, false).String() }

// daemons are the nodes of the load balancers and the servers.
func (t *Topology) daemons() []string {
	return slices.Concat(names(LBName, t.LBs), names(SecondName, t.Second), names(ServerName, len(t.Servers)))
}

// fabricAddresses are those of load balancer i on the fabric.
func fabricAddresses(i int) []netip.Prefix {
	return []netip.Prefix{prefix("10.30.2.%d/16", i), prefix("fd30::2:%x/64", i)}
}

// uplinkAddresses are those of load balancer i and of the router on the link between them.
func uplinkAddresses(i int, v6 bool) (balancer, router netip.Prefix) {
	if v6 {
		return prefix("fd20:0:0:%x::2/64", i), prefix("fd20:0:0:%x::1/64", i)
	}
	return prefix("10.20.%d.2/24", i), prefix("10.20.%d.1/24", i)
}

// UplinkAddress is the IPv4 address of load balancer i on its link to the router, and the router's.
func UplinkAddress(i int) (balancer, router netip.Addr) {
	near, far := uplinkAddresses(i, false)
	return near.Addr(), far.Addr()
}

// FabricAddress is the IPv4 address of load balancer i on the fabric.
func FabricAddress(i int) netip.Addr { return fabricAddresses(i)[0].Addr() }

// UplinkName is the router's interface towards load balancer i.
func UplinkName(i int) string { return uplink(LBName(i)) }

// uplink is the router's interface towards a load balancer.
func uplink(lb string) string { return lb + "-up" }

func secondAddress(i int) netip.Prefix { return prefix("10.30.3.%d/16", i) }

// manageAddress is where the management network reaches a node.
func manageAddress(node string) netip.Addr {
	if node == operatorNode {
		return netip.MustParseAddr("10.50.5.1")
	}
	kind := strings.TrimRight(node, "0123456789")
	nets := map[string]int{"s": 1, "lb": 2, "c": 3, "e": 4}
	return netip.MustParseAddr(fmt.Sprintf("10.50.%d.%s", nets[kind], node[len(kind):]))
}

// ControlAddresses are those of all nodes of a kind, as --controller wants them.
func ControlAddresses(name func(int) string, count int) string {
	var all []string
	for _, node := range names(name, count) {
		all = append(all, netip.AddrPortFrom(manageAddress(node), controlPort).String())
	}
	return strings.Join(all, ",")
}
