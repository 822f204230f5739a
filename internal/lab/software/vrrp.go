// What many small places have in front of their servers: HAProxy on two hosts, and keepalived, which has the VIPs on one of them.
package software

import (
	"net/netip"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/lab/host"
)

// ProxyPair is one host of two with HAProxy and keepalived: the value of their configurations.
type ProxyPair struct {
	Node, Name, Dir string
	Addresses       []netip.AddrPort // of services; host I is to have every second one, beginning with its own
	I               int              // 1 or 2
	Servers         []Site
	Health          string
	CheckMS         int64
	Rise, Fall      int
	Interval        string // seconds between advertisements (RFC 5798)
	Own             netip.AddrPort
}

// Router is the virtual router of an address.
func (p ProxyPair) Router(address int) int { return 51 + address }

// Priority is that of this host for an address.
func (p ProxyPair) Priority(address int) int {
	if address%2 == (p.I-1)%2 {
		return 200
	}
	return 100
}

// Proxy starts HAProxy, which copies bytes of TCP connections.
func (p ProxyPair) Proxy(lab *host.Lab) *host.Process {
	return Program{Node: p.Node, Name: "haproxy", Configuration: "haproxy-tcp", Dir: p.Dir, Values: p, Listens: p.Own}.Start(lab)
}

// Keepalived starts it.
func (p ProxyPair) Keepalived(lab *host.Lab) *host.Process {
	return Program{Node: p.Node, Name: "keepalived", Configuration: "keepalived", Dir: p.Dir, Values: p,
		Arguments: []string{"-p", filepath.Join(p.Dir, "keepalived.pid"), "-r", filepath.Join(p.Dir, "vrrp.pid")}}.Start(lab)
}
