// Network functions: servers that translate the addresses of clients who reach other servers through them, and whose gateway load balancers are.
package world

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

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

// buildFunctions makes the first servers functions, which have one public address together, and sends what clients send outside by the LBs.
func (l *Lab) buildFunctions() {
	if l.Topology.Functions == 0 {
		return
	}
	for i := 1; i <= l.Topology.Functions; i++ {
		for key, value := range functionSysctls {
			script.Check(l.Space(ServerName(i)).Sysctl(key, value))
		}
		l.translate(i)
	}
	var living []int
	for i := range l.Topology.LBs {
		living = append(living, i+1)
	}
	l.FunctionsBy(living...)
	var by []string
	for _, hop := range l.uplinks(false) {
		by = append(by, "nexthop", "via", hop.Gateway.String(), "dev", hop.Interface)
	}
	script.Checkf(errors.Join(
		l.ip(RouterNode, append([]string{"route", "add", outside.String(), "table", "100"}, by...)...),
		l.ip(RouterNode, "rule", "add", "iif", ClientNode, "lookup", "100")), "send what clients send outside by the load balancers")
}

// translate has a function translate clients' addresses, to the public one or, without one, to its own.
func (l *Lab) translate(i int) {
	low, high := portsOfFunction(i)
	to := l.Topology.ServerAddress(i, false)
	if len(l.Topology.VIPs) > 0 {
		to = l.Topology.VIPs[0]
	}
	nat := exec.Command("nft", "-f", "-")
	nat.Stdin = strings.NewReader(fmt.Sprintf(`table ip lab {
  chain out {
    type nat hook postrouting priority srcnat
    ip saddr 10.10.0.0/16 meta l4proto { tcp, udp } snat to %s:%d-%d
  }
}`, to, low, high))
	script.Checkf(errors.Join(l.Space(ServerName(i)).Start(nat), nat.Wait()), "translate addresses with nft")
}

// FunctionsBy makes some load balancers the gateways of all functions, as a routing protocol would. None: the router.
func (l *Lab) FunctionsBy(lbs ...int) {
	var hops []netspace.NextHop
	for _, lb := range lbs {
		hops = append(hops, netspace.NextHop{Gateway: l.fabricAddresses(lb)[0].Addr(), Interface: "eth0"})
	}
	if len(hops) == 0 {
		hops = append(hops, netspace.NextHop{Gateway: prefix("10.30.0.254/16").Addr(), Interface: "eth0"})
	}
	for i := 1; i <= l.Topology.Functions; i++ {
		script.Check(l.Space(ServerName(i)).Route(anywhere4, 0, hops...))
	}
}

// Outside is the address of a server that clients reach through functions, 1 being the first.
func (t *Topology) Outside(i int) string { return t.ServerAddress(t.Functions+i, false).String() }
