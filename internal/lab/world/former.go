package world

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
)

// Former is what has the VIPs before Ballast has them, and after: HAProxy on a host of its own (Topology.Former).
type Former struct {
	t     *Trial
	proxy software.ProxyPair
}

// StartFormer starts it at the ports of the services, on a host that has the VIPs and announces them to nobody.
func (t *Trial) StartFormer() *Former {
	f := &Former{t, t.proxy(t.Network.former(), 80)}
	for _, vip := range t.Network.VIPs {
		script.Check(t.Lab.Space(f.proxy.Node).AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
	f.proxy.Proxy(t.Lab)
	return f
}

// Number is that of its host, for Routes.Send.
func (f *Former) Number() int { return f.t.Network.former() }

// Address is where load balancers and servers reach it.
func (f *Former) Address() netip.Addr { return FabricAddress(f.Number()) }

// Connections are those to a VIP that are open, and all that have begun.
func (f *Former) Connections(vip netip.Addr) (open, begun int, err error) {
	rows, err := proxyStats(f.t.Lab, f.proxy)
	if err != nil {
		return 0, 0, err
	}
	for _, row := range rows {
		if row[0] == vip.String() && row[1] == "FRONTEND" {
			return script.Must(strconv.Atoi(row[4])), script.Must(strconv.Atoi(row[7])), nil
		}
	}
	return 0, 0, fmt.Errorf("HAProxy has no frontend %s: %v", vip, rows)
}
