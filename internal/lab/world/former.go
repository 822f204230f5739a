package world

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Former is what has the VIPs before Ballast has them, and after, on a host of its own (Topology.Former).
type Former struct {
	t     *Trial
	Begun func(one *fleet.Service) (connections int, err error) // of a service, since it runs
	Open  func(held *Load) (connections int, err error)         // those of a load that are open there, perhaps with others
}

// Number is that of its host, for Routes.Send.
func (f *Former) Number() int { return f.t.Network.former() }

// Address is where load balancers and servers reach it.
func (f *Former) Address() netip.Addr { return FabricAddress(f.Number()) }

// ownVIPs gives its host the VIPs, which it announces to nobody.
func (f *Former) ownVIPs() {
	for _, vip := range f.t.Network.VIPs {
		script.Check(f.t.Lab.Space(LBName(f.Number())).AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
}

// StartFormerProxy starts HAProxy at the ports of the services.
func (t *Trial) StartFormerProxy() *Former {
	proxy := t.proxy(t.Network.former(), 80)
	count := func(vip netip.Addr, column int) (connections int, err error) {
		rows, err := proxyStats(t.Lab, proxy)
		if err != nil {
			return 0, err
		}
		for _, row := range rows {
			if row[0] == vip.String() && row[1] == "FRONTEND" {
				return script.Must(strconv.Atoi(row[column])), nil
			}
		}
		return 0, fmt.Errorf("HAProxy has no frontend %s: %v", vip, rows)
	}
	f := &Former{t: t}
	f.Begun = func(one *fleet.Service) (int, error) { return count(one.VIP, 7) }
	f.Open = func(*Load) (open int, err error) {
		for _, vip := range t.Network.VIPs {
			of, err := count(vip, 4)
			if err != nil {
				return 0, err
			}
			open += of
		}
		return open, nil
	}
	f.ownVIPs()
	proxy.Proxy(t.Lab)
	return f
}
