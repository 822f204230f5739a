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

// ownVIPs gives its host the VIPs, which it announces to nobody; on a segment it answers for them.
func (f *Former) ownVIPs() {
	device := "lo"
	if f.t.Network.Segment {
		device = "eth1"
	}
	f.address("add", device)
}

// address changes the VIPs of one of its devices.
func (f *Former) address(change, device string) {
	for _, vip := range f.t.Network.VIPs {
		f.run("ip", "address", change, netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", device)
	}
}

func (f *Former) run(command ...string) {
	script.Check(f.t.Lab.Run(LBName(f.Number()), "", command...))
}

// GiveUp has it answer for the VIPs on the segment no more, and serve what is sent to it as their predecessor: docs/run/moving.md, "With L2".
func (f *Former) GiveUp() {
	f.address("add", "lo")
	f.run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
	f.address("del", "eth1")
}

// TakeBack has it answer for them again, which nobody is told before Announce.
func (f *Former) TakeBack() { f.address("add", "eth1") }

// Announce tells the segment that the VIPs are here.
func (f *Former) Announce() {
	for _, vip := range f.t.Network.VIPs {
		f.run("arping", "-q", "-U", "-c", "3", "-I", "eth1", vip.String())
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
