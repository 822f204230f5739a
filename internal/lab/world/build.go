// Building a network.
package world

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Implementation constants.
const (
	fullMTU         = 1500   // of every link outside the fabric
	broadcastLimit  = 16     // servers in a lab that need not be introduced to each other
	manageInterface = "mgmt" // of every node that is on the management network
)

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

// secondPath is an address of clients that no connection begins from; firstPaths are those that they begin from.
var (
	secondPath = netip.MustParsePrefix("10.10.2.1/16")
	firstPaths = netip.MustParsePrefix("10.10.1.0/24")
)

// receiveBuffers are those that hosts of MPTCP begin with: data that came early, by the faster subflow, can fill the
// default of 128 KiB, so that what is missing has no room any more (seen with tcp_nopush on Linux 6.18).
const receiveBuffers = "4096 4194304 16777216"

// outside are the servers that clients reach through functions.
var outside = prefix("10.40.0.0/16")

// functionSysctls are those of a host that translates for others.
var functionSysctls = map[string]string{
	"net.ipv4.ip_forward":                "1",
	"net.ipv4.fib_multipath_hash_policy": "1",
	"net.ipv4.conf.all.arp_ignore":       "1",
}

// portsOfFunction are those that function i translates to: no two have one in common.
func portsOfFunction(i int) (low, high int) { return 10000 * i, 10000*i + 9999 }

// FunctionOf is the function that translates to a port; 0: none.
func FunctionOf(port int) int { return port / 10000 }

// buildNetwork makes the network. On error the caller closes the lab.
func buildNetwork(lab *host.Lab, topology Topology) *Network {
	defaultTo(&topology.Sources, 16)
	defaultTo(&topology.FabricMTU, 1600)
	defaultTo(&topology.ClientMTU, fullMTU)
	n := &Network{Topology: topology, lab: lab, wire: script.Must(link.Load()), lossy: map[string]*link.Wire{}}
	n.routes = &Routes{lab: lab, topology: &n.Topology}
	lab.OnClose(func() { _ = n.wire.Close() })
	b := builder{n}
	steps := []func(){b.router, b.client, b.balancers, b.second, b.servers, b.management, b.routeVIPs, b.narrowClients, b.functions}
	for _, step := range steps {
		script.Checkf(script.Try(step), "build lab %s", lab.ID)
	}
	return n
}

func defaultTo(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

// builder makes the nodes and links of a network.
type builder struct{ *Network }

func (b builder) addSpace(node string, sysctls ...map[string]string) *netspace.Space {
	return b.lab.AddSpace(node, append([]map[string]string{everyNode}, sysctls...)...)
}

func (b builder) router() {
	script.Check(b.addSpace(RouterNode, routerSysctls).AddBridge(fabric, b.FabricMTU, fabricGateway[0], fabricGateway[1]))
}

func (b builder) client() {
	client := b.addSpace(ClientNode, hostSysctls(), b.ClientSysctls)
	addresses := []netip.Prefix{}
	for _, source := range b.SourceAddresses(false) {
		addresses = append(addresses, prefix("%s/16", source))
	}
	for _, source := range b.SourceAddresses(true) {
		addresses = append(addresses, prefix("%s/64", source))
	}
	b.connectClient(
		netspace.End{Space: client, Interface: "eth0", Addresses: addresses, MTU: fullMTU},
		netspace.End{Space: b.lab.Space(RouterNode), Interface: ClientNode, Addresses: clientGateway[:], MTU: fullMTU})
	b.routes.routeOut(ClientNode, 0, clientGateway)
	if b.MPTCP {
		b.giveSecondPath()
	}
}

// connectClient joins client and router, by a relay if their link is to be slow.
func (b builder) connectClient(client, router netspace.End) {
	if b.ClientDelay == 0 && b.ClientHelloFaults == nil {
		script.Check(netspace.Connect(client, router))
		return
	}
	wire := b.addSpace(wireNode, map[string]string{"net.ipv6.conf.default.disable_ipv6": "1"})
	script.Check(errors.Join(
		netspace.Connect(client, netspace.End{Space: wire, Interface: "near", MTU: fullMTU}),
		netspace.Connect(router, netspace.End{Space: wire, Interface: "far", MTU: fullMTU})))
	b.slow = b.lab.StartPeer(process.SlowLink, host.Spawn{Node: wireNode, Stdout: &b.seen}, &slowlink.Options{
		Near: "near", Far: "far", Delay: b.ClientDelay, Faults: b.ClientHelloFaults})
}

// giveSecondPath gives clients another address, and lets their kernel take up what servers announce (add_addr_accepted
// is 0 by default).
func (b builder) giveSecondPath() {
	client := b.lab.Space(ClientNode)
	script.Check(errors.Join(
		client.AddAddress("eth0", secondPath),
		client.Sysctl("net.ipv4.tcp_rmem", receiveBuffers),
		b.lab.Run(ClientNode, "", "ip", "mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4"),
		b.lab.Run(ClientNode, "", "ip", "mptcp", "endpoint", "add", secondPath.Addr().String(), "dev", "eth0", "subflow", "fullmesh")))
}

func (b builder) balancers() {
	router, hosts := b.lab.Space(RouterNode), b.LBs
	if b.Former {
		hosts = b.former()
	}
	for i := 1; i <= hosts; i++ {
		name := LBName(i)
		sysctls := map[string]string{}
		if b.AnswersThrough || b.Functions > 0 {
			sysctls = routerSysctls
		}
		lb := b.addSpace(name, sysctls)
		near4, far4 := uplinkAddresses(i, false)
		near6, far6 := uplinkAddresses(i, true)
		up, down := uplink(name), name+"-fabric"
		script.Check(errors.Join(
			netspace.Connect(
				netspace.End{Space: lb, Interface: "eth0", Addresses: []netip.Prefix{near4, near6}, MTU: fullMTU},
				netspace.End{Space: router, Interface: up, Addresses: []netip.Prefix{far4, far6}, MTU: fullMTU}),
			netspace.Connect(
				netspace.End{Space: lb, Interface: "eth1", MTU: b.FabricMTU, Addresses: fabricAddresses(i)},
				netspace.End{Space: router, Interface: down, MTU: b.FabricMTU, Bridge: fabric}),
			router.AttachXDP(up, b.wire.PassFD()),
			router.AttachXDP(down, b.wire.PassFD())))
		b.routes.routeUp(i)
		b.routes.routeToFarServers(name)
	}
}

// second makes the load balancers that no router leads to: they have one interface, on the fabric.
func (b builder) second() {
	router := b.lab.Space(RouterNode)
	for i := 1; i <= b.Second; i++ {
		name := SecondName(i)
		script.Check(netspace.Connect(
			netspace.End{Space: b.addSpace(name), Interface: "eth0", MTU: b.FabricMTU, Addresses: []netip.Prefix{secondAddress(i)}},
			netspace.End{Space: router, Interface: name, MTU: b.FabricMTU, Bridge: fabric}))
		script.Check(router.AttachXDP(name, b.wire.PassFD()))
		b.routes.routeSecondOut(name)
	}
}

func (b builder) servers() {
	for i := range b.Servers {
		b.server(i + 1)
	}
	if len(b.Servers) > broadcastLimit {
		b.introduceServers()
	}
}

// introduceServers gives the servers of a large lab each other's addresses. Agents want to know the route to every
// other server, and the kernel's neighbour table, which all namespaces share, holds 1024 by default.
func (b builder) introduceServers() {
	neighbours := map[netip.Addr]net.HardwareAddr{}
	for i, name := range names(ServerName, len(b.Servers)) {
		mac := script.Must(b.lab.Space(name).MAC("eth0"))
		neighbours[b.ServerAddress(i+1, false)] = mac
		neighbours[b.ServerAddress(i+1, true)] = mac
	}
	for _, name := range names(ServerName, len(b.Servers)) {
		script.Check(b.lab.Space(name).KnowNeighbours("eth0", neighbours))
	}
}

func (b builder) server(i int) {
	node, name, router := b.Servers[i-1], ServerName(i), b.lab.Space(RouterNode)
	if home := b.home(name); home != name {
		b.serverOn(home, i)
		return
	}
	server := b.addSpace(name, hostSysctls(), node.Sysctls)
	if b.MPTCP {
		script.Check(server.Sysctl("net.ipv4.tcp_rmem", receiveBuffers))
	}
	near := netspace.End{Space: server, Interface: "eth0", MTU: b.FabricMTU, Addresses: []netip.Prefix{
		netip.PrefixFrom(b.ServerAddress(i, false), 16), netip.PrefixFrom(b.ServerAddress(i, true), 64)}}
	far := netspace.End{Space: router, Interface: name, MTU: b.FabricMTU, Bridge: fabric}
	gateway := fabricGateway
	if node.FarMTU != 0 {
		gateway = [2]netip.Prefix{prefix("10.40.%d.1/24", i), prefix("fd40:0:0:%x::1/64", i)}
		near.MTU, far.MTU, far.Bridge = node.FarMTU, node.FarMTU, ""
		near.Addresses[0] = netip.PrefixFrom(near.Addresses[0].Addr(), 24)
		far.Addresses = gateway[:]
	}
	script.Check(errors.Join(netspace.Connect(near, far), router.AttachXDP(name, b.wire.PassFD())))
	if node.BitsPerSecond != 0 {
		script.Check(server.LimitRate("eth0", node.BitsPerSecond))
	}
	if b.AnswersThrough {
		gateway = [2]netip.Prefix(fabricAddresses(1))
	}
	b.routes.answerBy(i, gateway)
	if b.Functions > 0 && i > b.Functions { // out there nobody has our addresses
		return
	}
	b.addVIPs(server)
}

// addVIPs gives a server the VIPs.
func (b builder) addVIPs(server *netspace.Space) {
	for _, vip := range b.VIPs {
		script.Check(server.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
}

// serverOn makes server i on the host of a load balancer. It answers by the load balancer's way out.
func (b builder) serverOn(home string, i int) {
	server := b.lab.Share(ServerName(i), home)
	for key, value := range hostSysctls() {
		script.Check(server.Sysctl(key, value))
	}
	script.Check(errors.Join(
		server.AddAddress("eth1", netip.PrefixFrom(b.ServerAddress(i, false), 16)),
		server.AddAddress("eth1", netip.PrefixFrom(b.ServerAddress(i, true), 64))))
	b.addVIPs(server)
}

// management joins the nodes to the management network, so that the network that carries control and the one that
// carries data fail independently; controllers, etcd members and the operator are on it alone.
func (b builder) management() {
	if !b.Management {
		return
	}
	hub := b.addSpace(managementNode)
	script.Check(hub.AddBridge(manageInterface, fullMTU))
	own := append(names(ControllerName, b.Controllers), append(names(MemberName, b.EtcdMembers), operatorNode)...)
	for _, node := range own {
		b.addSpace(node)
	}
	for _, node := range append(own, b.daemons()...) {
		script.Check(netspace.Connect(
			netspace.End{Space: b.lab.Space(node), Interface: manageInterface, MTU: fullMTU, Addresses: []netip.Prefix{netip.PrefixFrom(manageAddress(node), 16)}},
			netspace.End{Space: hub, Interface: node, MTU: fullMTU, Bridge: manageInterface}))
	}
	certify(b.lab, &b.Topology)
}

// routeVIPs spreads the VIPs over all load balancers by flow hash; a next hop whose link is down drops out by itself.
func (b builder) routeVIPs() {
	switch {
	case b.LBs == 0:
	case b.Segment:
		for _, vip := range b.VIPs {
			script.Check(b.lab.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, netspace.NextHop{Interface: fabric}))
		}
	case b.Routing.Daemon != "":
		var neighbors []software.Neighbor
		for i, name := range names(LBName, b.LBs) {
			balancer, _ := uplinkAddresses(i+1, b.Routing.IPv6)
			neighbors = append(neighbors, software.Neighbor{Name: name, Interface: uplink(name), Address: balancer.Addr()})
		}
		software.StartRouter(b.lab, RouterNode, b.Routing.Daemon, neighbors)
	default:
		for _, vip := range b.VIPs {
			script.Check(b.lab.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, b.uplinks(vip.Is6())...))
		}
	}
}

// uplinks are the router's next hops to all load balancers.
func (b builder) uplinks(v6 bool) (hops []netspace.NextHop) {
	for i := range b.LBs {
		hops = append(hops, uplinkHop(i+1, v6))
	}
	return hops
}

// narrowClients makes the router's route to the clients narrower than both of its ends.
func (b builder) narrowClients() {
	if b.ClientMTU == fullMTU {
		return
	}
	for _, sources := range []netip.Prefix{prefix("10.10.1.0/24"), prefix("fd10::1:0/112")} {
		script.Checkf(b.lab.Space(RouterNode).Route(sources, b.ClientMTU, netspace.NextHop{Interface: ClientNode}), "narrow the clients' link")
	}
}

// functions makes the first servers functions, which have one public address together, and sends what clients send
// outside by the load balancers.
func (b builder) functions() {
	if b.Functions == 0 {
		return
	}
	for i := 1; i <= b.Functions; i++ {
		for key, value := range functionSysctls {
			script.Check(b.lab.Space(ServerName(i)).Sysctl(key, value))
		}
		b.translate(i)
	}
	var living []int
	for i := range b.LBs {
		living = append(living, i+1)
	}
	b.routes.FunctionsBy(living...)
	for i := 1; i <= b.Functions; i++ {
		b.routes.followGateways(ServerName(i))
	}
	route := []string{"ip", "route", "add", outside.String(), "table", "100"}
	for _, hop := range b.uplinks(false) {
		route = append(route, "nexthop", "via", hop.Gateway.String(), "dev", hop.Interface)
	}
	script.Checkf(errors.Join(
		b.lab.Run(RouterNode, "", route...),
		b.lab.Run(RouterNode, "", "ip", "rule", "add", "iif", ClientNode, "lookup", "100")), "send what clients send outside by the load balancers")
}

// translate has a function translate clients' addresses, to the public one or, without one, to its own.
func (b builder) translate(i int) {
	low, high := portsOfFunction(i)
	to := b.ServerAddress(i, false)
	if len(b.VIPs) > 0 {
		to = b.VIPs[0]
	}
	rules := fmt.Sprintf(`table ip lab {
  chain out {
    type nat hook postrouting priority srcnat
    ip saddr 10.10.0.0/16 meta l4proto { tcp, udp } snat to %s:%d-%d
  }
}`, to, low, high)
	script.Checkf(b.lab.Run(ServerName(i), rules, "nft", "-f", "-"), "translate addresses with nft")
}
