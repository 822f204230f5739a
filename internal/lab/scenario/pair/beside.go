package pair

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// runBeside puts HAProxy on both hosts, with the VIPs by keepalived, through the events of run: as a package's upgrade does, HAProxy is
// restarted. keepalived runs on, but for power cuts.
func (p *pair) runBeside() {
	proxies := p.StartProxies()
	even := func() {
		for i := 1; i <= 2; i++ {
			proxies.AwaitHealth(i, 1, true)
			proxies.AwaitHealth(i, 2, true)
			proxies.AwaitOwned(i, 1)
		}
	}
	even()
	begin := func() *world.Load {
		return p.traffic(func(service *fleet.Service) string { return netip.AddrPortFrom(service.VIP, world.ProxyPort).String() })
	}
	running := begin()
	for i := 1; i <= 2; i++ {
		for _, how := range []string{"stop", "kill"} {
			p.Event(fmt.Sprintf("%s HAProxy of host %d, and start it", how, i), func() { proxies.Restart(i, how == "stop"); even() })
			p.Traffic.Busy(running, 80)
		}
	}
	running.Finish(p.Context)
	_, restarts := p.broken(running.Connections)
	running = begin() // those that live long have broken by now
	for i := 1; i <= 2; i++ {
		p.Event(fmt.Sprintf("host %d loses power", i), func() {
			p.off = append(p.off, outage{server: world.ServerName(i), begin: time.Now()})
			proxies.PowerOff(i)
			proxies.AwaitOwned(3-i, 2)
			p.moved = append(p.moved, time.Since(p.off[len(p.off)-1].begin))
			proxies.AwaitHealth(3-i, i, false)
			p.off[len(p.off)-1].told = time.Now()
		})
		p.Traffic.Busy(running, 40)
		p.Event(fmt.Sprintf("host %d returns", i), func() { proxies.PowerOn(i); even() })
		p.Traffic.Busy(running, 400)
	}
	running.Finish(p.Context)
	for i, sessions := range proxies.Sessions() {
		p.result.Expect(len(sessions) == 2 && sessions[scenario.VIP4] > 0 && sessions[otherVIP] > 0, "HAProxy of host %d has carried %v", i+1, sessions)
	}
	_, cuts := p.broken(running.Connections)
	p.result.Measure("beside_cut_by_restarts", float64(len(restarts)))
	p.result.Measure("beside_cut_by_power_of_living_servers", float64(len(cuts)))
	p.result.Measure("beside_vips_moved_ms", float64(slices.Max(p.moved).Milliseconds()))
}
