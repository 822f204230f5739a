package doctor

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/bgp"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// gatherBGP looks for the routers that VIPs are announced to. A daemon that runs tells itself how its sessions are.
func (f *facts) gatherBGP(ctx context.Context) {
	node := f.File.Fleet.Node(f.Name)
	if node == nil || node.BGP.IsZero() {
		return
	}
	f.Password = bgp.CheckPassword(node.BGP.PasswordFile)
	f.Neighbors = map[netip.Addr]neighborFacts{}
	for _, n := range node.BGP.Neighbors {
		var way neighborFacts
		for end := time.Now().Add(reachTimeout); ; time.Sleep(10 * time.Millisecond) { // the kernel looks for a neighbour that it does not know
			if _, way.Err = netdev.NewResolver().Lookup(n.Address); way.Err == nil || time.Now().After(end) {
				break
			}
		}
		way.By = netdev.Gateway(n.Address)
		if way.Err == nil && node.BGP.PasswordFile == "" && !f.Daemon.runs() {
			dialer := net.Dialer{Timeout: reachTimeout}
			c, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(n.Address, bgpPort).String())
			if way.Asked, way.Answer = true, err; err == nil {
				c.Close()
			}
		}
		f.Neighbors[n.Address] = way
	}
}
