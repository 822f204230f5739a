// What a lab's network looks like, as a value, and building it.
//
//	client ---- router ==(ECMP)== lb1..lbN
//	              |                   |
//	              +----- fabric ------+---- s1..sM      (one bridge, inside the router's namespace)
//	              |                   +---- second1..secondK
//	              +----- own subnet ------- a far server (behind the router, with its own MTU)
package world

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Names of the nodes that every lab has.
const (
	ClientNode = "client"
	RouterNode = "router"
	wireNode   = "wire" // on the clients' link, when it is slow
	fabric     = "fabric"
)

// Implementation constants.
const (
	fullMTU        = 1500 // of every link outside the fabric
	broadcastLimit = 16   // servers in a lab that need not be introduced to each other
)

// A Topology is one network. The zero value of a field means its default.
type Topology struct {
	LBs     int
	Second  int // load balancers behind the others, on the fabric alone
	Servers []ServerNode
	VIPs    []netip.Addr
	Sources int // addresses that clients connect from; default 16

	FabricMTU      int               // default 1600: room for encapsulation around 1500
	ClientMTU      int               // that the router's way to the clients has; default 1500
	RoutesHideMTU  bool              // LBs learn the MTU of far servers from ICMP alone
	ClientDelay    time.Duration     // of every frame to and from clients, each way
	HelloFaults    []slowlink.Fault  // of ClientHellos on their way from clients
	ClientSysctls  map[string]string // beyond the lab's own
	MPTCP          bool              // servers and clients speak it, and clients have another address
	AnswersThrough bool              // servers answer by an LB instead of by the router
	Functions      int               // so many servers, the first ones, translate addresses: clients reach the others through them

	Routing Routing // how the router knows the ways to VIPs

	Management  bool // there is a management network
	Controllers int  // on it
	EtcdMembers int  // on it
	Relays      bool // load balancers hear of their one controller by relays, which can lose weights
}

// A ServerNode is one server of a topology.
type ServerNode struct {
	FarMTU  int               // not 0: in a subnet of its own behind the router, on a link with this MTU
	Sysctls map[string]string // beyond the lab's own

	App           *AppServer // what runs there; nil: nginx
	BitsPerSecond int64      // that leave by its link; 0: not limited
}

// everyNode are the sysctls of all namespaces of a lab.
var everyNode = map[string]string{
	"net.ipv4.conf.all.rp_filter":                   "0",
	"net.ipv4.conf.default.rp_filter":               "0",
	"net.ipv4.conf.all.ignore_routes_with_linkdown": "1",
	"net.ipv4.conf.all.send_redirects":              "0",
	"net.ipv4.conf.default.send_redirects":          "0",
	"net.ipv4.conf.all.accept_redirects":            "0",
	"net.ipv4.conf.default.accept_redirects":        "0",
	"net.ipv4.icmp_ratelimit":                       "0",
	"net.ipv6.icmp.ratelimit":                       "0",
	"net.ipv6.conf.all.accept_dad":                  "0",
	"net.ipv6.conf.default.accept_dad":              "0",
	"net.ipv6.conf.default.accept_ra":               "0",
	"net.ipv6.conf.all.ignore_routes_with_linkdown": "1",
	"net.ipv6.conf.all.accept_redirects":            "0",
	"net.ipv6.conf.default.accept_redirects":        "0",
	"net.ipv6.conf.all.keep_addr_on_down":           "1",
	"net.ipv6.conf.default.keep_addr_on_down":       "1",
	"net.ipv6.conf.default.router_solicitations":    "0",
}

var routerSysctls = map[string]string{
	"net.ipv4.ip_forward":                "1",
	"net.ipv6.conf.all.forwarding":       "1",
	"net.ipv4.fib_multipath_hash_policy": "1",
	"net.ipv6.fib_multipath_hash_policy": "1",
}

// hostSysctls are for clients and servers.
func hostSysctls() map[string]string {
	return map[string]string{
		"net.ipv4.ip_local_port_range":   "1024 65000",
		"net.core.somaxconn":             "8192",
		"net.ipv4.tcp_max_syn_backlog":   "8192",
		"net.ipv4.conf.all.arp_ignore":   "1",
		"net.ipv4.conf.all.arp_announce": "2",
		"net.ipv4.ip_nonlocal_bind":      "1",
	}
}

// The lab's addresses.
var (
	anywhere4 = netip.MustParsePrefix("0.0.0.0/0")
	anywhere6 = netip.MustParsePrefix("::/0")
)

func prefix(format string, arguments ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, arguments...))
}

// LBName and ServerName are the nodes of load balancer and server i (1-based).
func LBName(i int) string     { return fmt.Sprintf("lb%d", i) }
func ServerName(i int) string { return fmt.Sprintf("s%d", i) }

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

// build makes the network. On error the caller closes the lab.
func (l *Lab) build(topology Topology) {
	defaultTo(&topology.Sources, 16)
	defaultTo(&topology.FabricMTU, 1600)
	defaultTo(&topology.ClientMTU, fullMTU)
	l.Topology = topology
	steps := []func(){l.buildRouter, l.buildClient, l.buildLBs, l.buildSecond, l.buildServers, l.buildManagement, l.routeVIPs, l.narrowClients, l.buildFunctions}
	for _, step := range steps {
		script.Checkf(script.Try(step), "build lab %s", l.id)
	}
}

func defaultTo(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

func (l *Lab) buildRouter() {
	l.addSpace(RouterNode, routerSysctls)
	script.Check(l.Space(RouterNode).AddBridge(fabric, l.Topology.FabricMTU, prefix("10.30.0.254/16"), prefix("fd30::fe/64")))
}

func (l *Lab) buildClient() {
	l.addSpace(ClientNode, hostSysctls())
	client, router := l.Space(ClientNode), l.Space(RouterNode)
	for key, value := range l.Topology.ClientSysctls {
		script.Check(client.Sysctl(key, value))
	}
	addresses := []netip.Prefix{}
	for _, source := range l.Topology.SourceAddresses(false) {
		addresses = append(addresses, prefix("%s/16", source))
	}
	for _, source := range l.Topology.SourceAddresses(true) {
		addresses = append(addresses, prefix("%s/64", source))
	}
	gateway := []netip.Prefix{prefix("10.10.0.254/16"), prefix("fd10::fe/64")}
	l.connectClient(
		netspace.End{Space: client, Interface: "eth0", Addresses: addresses, MTU: fullMTU},
		netspace.End{Space: router, Interface: ClientNode, Addresses: gateway, MTU: fullMTU})
	script.Check(client.Route(anywhere4, 0, netspace.NextHop{Gateway: gateway[0].Addr(), Interface: "eth0"}))
	script.Check(client.Route(anywhere6, 0, netspace.NextHop{Gateway: gateway[1].Addr(), Interface: "eth0"}))
	if l.Topology.MPTCP {
		l.giveSecondPath()
	}
}

// connectClient joins client and router, by a relay if their link is to be slow.
func (l *Lab) connectClient(client, router netspace.End) {
	if l.Topology.ClientDelay == 0 && l.Topology.HelloFaults == nil {
		script.Check(netspace.Connect(client, router))
		return
	}
	quiet := map[string]string{"net.ipv6.conf.default.disable_ipv6": "1"}
	l.addSpace(wireNode, quiet)
	wire := l.Space(wireNode)
	script.Check(errors.Join(
		netspace.Connect(client, netspace.End{Space: wire, Interface: "near", MTU: fullMTU}),
		netspace.Connect(router, netspace.End{Space: wire, Interface: "far", MTU: fullMTU})))
	l.slow = l.startPeer(process.SlowLink, Spawn{Node: wireNode, Stdout: &l.hellos}, &slowlink.Options{
		Near: "near", Far: "far", Delay: l.Topology.ClientDelay, Faults: l.Topology.HelloFaults})
}

func (l *Lab) buildLBs() {
	router := l.Space(RouterNode)
	for i := 1; i <= l.Topology.LBs; i++ {
		name := LBName(i)
		sysctls := map[string]string{}
		if l.Topology.AnswersThrough || l.Topology.Functions > 0 {
			sysctls = routerSysctls
		}
		l.addSpace(name, sysctls)
		lb := l.Space(name)
		up, down := uplink(name), name+"-fabric"
		near4, far4 := prefix("10.20.%d.2/24", i), prefix("10.20.%d.1/24", i)
		near6, far6 := prefix("fd20:0:0:%x::2/64", i), prefix("fd20:0:0:%x::1/64", i)
		script.Check(errors.Join(
			netspace.Connect(
				netspace.End{Space: lb, Interface: "eth0", Addresses: []netip.Prefix{near4, near6}, MTU: fullMTU},
				netspace.End{Space: router, Interface: up, Addresses: []netip.Prefix{far4, far6}, MTU: fullMTU}),
			netspace.Connect(
				netspace.End{Space: lb, Interface: "eth1", MTU: l.Topology.FabricMTU, Addresses: l.fabricAddresses(i)},
				netspace.End{Space: router, Interface: down, MTU: l.Topology.FabricMTU, Bridge: fabric}),
			router.AttachXDP(up, l.wire.PassFD()),
			router.AttachXDP(down, l.wire.PassFD()),
			lb.Route(anywhere4, 0, netspace.NextHop{Gateway: far4.Addr(), Interface: "eth0"}),
			lb.Route(anywhere6, 0, netspace.NextHop{Gateway: far6.Addr(), Interface: "eth0"})))
		l.routeToFarServers(name)
	}
}

// routeToFarServers leads an LB to the servers beyond the fabric.
func (l *Lab) routeToFarServers(lb string) {
	var errs []error
	for i, server := range l.Topology.Servers {
		if server.FarMTU == 0 {
			continue
		}
		mtu := server.FarMTU
		if l.Topology.RoutesHideMTU {
			mtu = 0
		}
		by4 := netspace.NextHop{Gateway: prefix("10.30.0.254/16").Addr(), Interface: "eth1"}
		by6 := netspace.NextHop{Gateway: prefix("fd30::fe/64").Addr(), Interface: "eth1"}
		errs = append(errs,
			l.Space(lb).Route(prefix("10.40.%d.0/24", i+1), mtu, by4),
			l.Space(lb).Route(prefix("fd40:0:0:%x::/64", i+1), mtu, by6))
	}
	script.Check(errors.Join(errs...))
}

// uplink is the router's interface towards an LB.
func uplink(lb string) string { return lb + "-up" }

func (l *Lab) fabricAddresses(lb int) []netip.Prefix {
	return []netip.Prefix{prefix("10.30.2.%d/16", lb), prefix("fd30::2:%x/64", lb)}
}

func (l *Lab) buildServers() {
	for i := range l.Topology.Servers {
		l.buildServer(i + 1)
	}
	if len(l.Topology.Servers) > broadcastLimit {
		l.introduceServers()
	}
}

// introduceServers tells the servers of a large lab of each other. Agents want to know the way to every other server, and the
// kernel's neighbour table, which all namespaces share, holds 1024 by default.
func (l *Lab) introduceServers() {
	neighbours := map[netip.Addr]net.HardwareAddr{}
	for i := range l.Topology.Servers {
		mac := script.Must(l.Space(ServerName(i + 1)).MAC("eth0"))
		neighbours[l.Topology.ServerAddress(i+1, false)] = mac
		neighbours[l.Topology.ServerAddress(i+1, true)] = mac
	}
	for i := range l.Topology.Servers {
		script.Check(l.Space(ServerName(i+1)).KnowNeighbours("eth0", neighbours))
	}
}

func (l *Lab) buildServer(i int) {
	node, name, router := l.Topology.Servers[i-1], ServerName(i), l.Space(RouterNode)
	l.addSpace(name, hostSysctls())
	server := l.Space(name)
	for key, value := range node.Sysctls {
		script.Check(server.Sysctl(key, value))
	}
	if l.Topology.MPTCP {
		script.Check(server.Sysctl("net.ipv4.tcp_rmem", receiveBuffers))
	}
	near := netspace.End{Space: server, Interface: "eth0", MTU: l.Topology.FabricMTU, Addresses: []netip.Prefix{
		netip.PrefixFrom(l.Topology.ServerAddress(i, false), 16), netip.PrefixFrom(l.Topology.ServerAddress(i, true), 64)}}
	far := netspace.End{Space: router, Interface: name, MTU: l.Topology.FabricMTU, Bridge: fabric}
	gateway4, gateway6 := prefix("10.30.0.254/16"), prefix("fd30::fe/64")
	if node.FarMTU != 0 {
		gateway4, gateway6 = prefix("10.40.%d.1/24", i), prefix("fd40:0:0:%x::1/64", i)
		near.MTU, far.MTU, far.Bridge = node.FarMTU, node.FarMTU, ""
		near.Addresses[0] = netip.PrefixFrom(near.Addresses[0].Addr(), 24)
		far.Addresses = []netip.Prefix{gateway4, gateway6}
	}
	script.Check(errors.Join(netspace.Connect(near, far), router.AttachXDP(name, l.wire.PassFD())))
	if node.BitsPerSecond != 0 {
		script.Check(server.LimitRate("eth0", node.BitsPerSecond))
	}
	if l.Topology.AnswersThrough {
		gateway4, gateway6 = l.fabricAddresses(1)[0], l.fabricAddresses(1)[1]
	}
	l.answerBy(i, gateway4.Addr(), gateway6.Addr())
	if l.Topology.Functions > 0 && i > l.Topology.Functions { // out there nobody has our addresses
		return
	}
	for _, vip := range l.Topology.VIPs {
		script.Check(server.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
}

// answerBy sets the way of a server's answers. Their MTU is that of the world: the fabric's extra room is
// for the tunnels of the load balancers.
func (l *Lab) answerBy(i int, gateway4, gateway6 netip.Addr) {
	server, mtu := l.Space(ServerName(i)), fullMTU
	if far := l.Topology.Servers[i-1].FarMTU; far != 0 {
		mtu = far
	}
	script.Check(errors.Join(
		server.Route(anywhere4, mtu, netspace.NextHop{Gateway: gateway4, Interface: "eth0"}),
		server.Route(anywhere6, mtu, netspace.NextHop{Gateway: gateway6, Interface: "eth0"})))
}

// AnswerByLB sends the answers of all servers by one LB.
func (l *Lab) AnswerByLB(lb int) {
	gateways := l.fabricAddresses(lb)
	for i := range l.Topology.Servers {
		l.answerBy(i+1, gateways[0].Addr(), gateways[1].Addr())
	}
}

// routeVIPs spreads the VIPs over all LBs by flow hash; a next hop whose link is down drops out by itself.
func (l *Lab) routeVIPs() {
	if l.Topology.LBs == 0 {
		return
	}
	if l.Topology.Routing.Daemon != "" {
		l.startRouting()
		return
	}
	for _, vip := range l.Topology.VIPs {
		script.Check(l.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, l.uplinks(vip.Is6())...))
	}
}

// uplinks are the router's ways to all LBs.
func (l *Lab) uplinks(v6 bool) (hops []netspace.NextHop) {
	for i := 1; i <= l.Topology.LBs; i++ {
		hop := netspace.NextHop{Gateway: prefix("10.20.%d.2/24", i).Addr(), Interface: uplink(LBName(i))}
		if v6 {
			hop.Gateway = prefix("fd20:0:0:%x::2/64", i).Addr()
		}
		hops = append(hops, hop)
	}
	return hops
}

// narrowClients makes the router's way to the clients narrower than both of its ends.
func (l *Lab) narrowClients() {
	if l.Topology.ClientMTU == fullMTU {
		return
	}
	for _, sources := range []netip.Prefix{prefix("10.10.1.0/24"), prefix("fd10::1:0/112")} {
		script.Checkf(l.Space(RouterNode).Route(sources, l.Topology.ClientMTU, netspace.NextHop{Interface: ClientNode}), "narrow the clients' link")
	}
}
