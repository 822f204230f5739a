// How long the data path answers other load balancers without this process.
package l2

import (
	"net/netip"
	"time"

	wire "github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/machine/announce"
	"github.com/ballast-lb/ballast/internal/machine/segment"
)

// begin goes on with what an earlier process owned, by the data path, which answers for it.
func (a *Announcer) begin(mac segment.MAC, now time.Time) error {
	known, err := a.answers.Known()
	if err != nil {
		return err
	}
	until, err := a.answers.Until()
	if err != nil {
		return err
	}
	var answered []netip.Addr
	var prefixes []netip.Prefix
	lapsed, moved := until != 0 && wire.Uptime() >= until, false
	for vip, answer := range known {
		if answer.State == wire.Other {
			continue
		}
		answered, prefixes = append(answered, vip), append(prefixes, netip.PrefixFrom(vip, vip.BitLen()))
		lapsed = lapsed || answer.State == wire.Held
		moved = moved || answer.MAC != mac
	}
	for _, vip := range answered {
		if lapsed {
			if err := a.answers.Set(vip, mac[:], wire.Held); err != nil {
				return err
			}
		}
	}
	kept := a.kept.Load()
	if kept == nil {
		kept = &Kept{}
	}
	a.machine = segment.New(a.o.Name, mac, answered, lapsed, kept.Peers, now)
	a.machine.Remember(now, kept.Ours)
	if moved {
		a.machine.SetMAC(mac, now)
	}
	a.able = announce.Machine{}
	a.able.Resume(prefixes, now, now.Add(grace))
	return a.extend(wire.Uptime())
}

// extend has the data path answer until this process must have said so again.
func (a *Announcer) extend(uptime time.Duration) error {
	until := uptime + segment.Lease
	if err := a.answers.SetUntil(until); err != nil {
		return err
	}
	a.until = until
	return nil
}

// renew is called before anything that comes in is looked at. A process that was stopped for too long has lost what it owned.
func (a *Announcer) renew(now time.Time) error {
	if a.machine == nil || a.answers == nil {
		return nil
	}
	uptime := wire.Uptime()
	if uptime < a.until {
		if uptime < a.until-segment.Lease+period {
			return nil
		}
		return a.extend(uptime)
	}
	known, err := a.answers.Known()
	if err != nil {
		return err
	}
	a.do(now, a.machine.Lapse(now, func(vip netip.Addr) bool { return known[vip].State != wire.Other }))
	a.close() // with what has come in meanwhile, which is old
	a.asked.Store(true)
	return a.extend(wire.Uptime())
}

// publishPeers says to the data path who may take VIPs when this process is gone.
func (a *Announcer) publishPeers() error {
	peers := map[[6]byte]bool{}
	for _, mac := range a.machine.Kept() {
		peers[mac] = true
	}
	return a.answers.SetPeers(peers)
}

func stateOf(v segment.VIPStatus) wire.State {
	switch {
	case v.Owned:
		return wire.Owned
	case v.Held:
		return wire.Held
	}
	return wire.Other
}
