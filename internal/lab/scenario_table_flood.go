// table: floods of what no TCP sends, while real clients work.
package lab

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/frames"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
)

// Implementation constants.
const (
	floodEntries    = 256                    // of the table: few, so that it is full soon
	floodCapacity   = floodEntries / 64 * 63 // connections that it has room for
	floodSYNs       = 6000
	floodForged     = 30_000
	floodReplayed   = 6000
	floodFINs       = 6000
	floodBatch      = 100
	floodPause      = 8 * time.Millisecond // between batches
	floodOverheard  = 300                  // packets of real clients, to be repeated
	floodDelivered  = 0.95                 // of a flood that must have come through at least
	farSequence     = 1 << 30              // outside of every window
	floodClientsNet = "203.0.113.0/24"
)

func floodSetup() setup {
	return setup{
		name: "floods", services: []*service{tableService(vip4, serviceTable{Entries: floodEntries})},
		// With SYN cookies always: servers keep nothing of a flood either.
		topology: Topology{LBs: 2, Servers: servers(4, map[string]string{"net.ipv4.tcp_syncookies": "2"})},
	}
}

// flooder sends frames to the router as if they came from clients far away.
type flooder struct {
	*tableTrial
	random   *rand.Rand
	socket   *frames.Socket
	from, to net.HardwareAddr
	service  netip.AddrPort
}

// openFlooder also leads what is sent back to nowhere: the clients' host does not forward.
func (x *tableTrial) openFlooder() (*flooder, error) {
	f := &flooder{tableTrial: x, random: x.random, service: netip.MustParseAddrPort(x.target())}
	var err error
	if f.from, err = x.space(clientNode).MAC("eth0"); err != nil {
		return nil, err
	}
	if f.to, err = x.space(routerNode).MAC(clientNode); err != nil {
		return nil, err
	}
	back := netspace.NextHop{Gateway: netip.MustParseAddr(x.topo.sourceAddresses(false)[0]), Interface: clientNode}
	if err := x.space(routerNode).Route(netip.MustParsePrefix(floodClientsNet), 0, back); err != nil {
		return nil, err
	}
	f.socket, err = x.openFrames(clientNode, "eth0")
	return f, err
}

// openFrames opens the frames of a node's interface.
func (l *Lab) openFrames(node, name string) (socket *frames.Socket, err error) {
	err = l.space(node).Do(func() error {
		socket, err = frames.Open(name)
		return err
	})
	return socket, err
}

func (x *tableTrial) playFloods() error {
	running, err := x.steady()
	if err != nil {
		return err
	}
	f, err := x.openFlooder()
	if err != nil {
		return err
	}
	defer f.socket.Close()
	overheard, err := f.overhear()
	if err != nil {
		return err
	}
	return x.series(running,
		step{"flood of SYNs", f.floodSYNs},
		step{"flood of forged cookies", f.floodForged},
		step{"flood of repeated packets", func() error { return f.floodReplayed(overheard) }},
		step{"flood of FINs, forged and with cookies of real connections", func() error { return f.floodFINs(overheard) }},
		step{"the flood's entries are free again", f.awaitForgotten})
}

// overhear collects packets that real clients send within their connections.
func (f *flooder) overhear() ([]frames.Segment, error) {
	ear, err := f.openFrames(clientNode, "eth0")
	if err != nil {
		return nil, err
	}
	defer ear.Close()
	var heard []frames.Segment
	err = await(f.ctx, stall, fmt.Sprintf("%d packets are overheard", floodOverheard), func() error {
		for {
			frame, err := ear.Receive()
			if err != nil {
				return stopWaiting(err)
			}
			if frame == nil {
				return fmt.Errorf("only %d", len(heard))
			}
			segment, ok := frames.Parse(frame)
			if ok && segment.Service == f.service && !segment.SYN && !segment.FIN && segment.Echo != 0 {
				segment.From, segment.To = f.from, f.to
				heard = append(heard, segment)
			}
			if len(heard) == floodOverheard {
				return nil
			}
		}
	})
	return heard, err
}

// stranger is the next packet of a client that does not exist.
func (f *flooder) stranger() frames.Segment {
	address := netip.MustParsePrefix(floodClientsNet).Addr().As4()
	address[3] = byte(f.random.Uint32())
	return frames.Segment{
		From: f.from, To: f.to, Client: netip.AddrPortFrom(netip.AddrFrom4(address), uint16(1024+f.random.IntN(64000))), Service: f.service,
		Sequence: f.random.Uint32(), Acknowledged: f.random.Uint32(), Value: f.random.Uint32(), Echo: f.random.Uint32() | 1,
	}
}

// flood sends packets at the flood's pace, waits until they came through, and returns what the load balancers counted meanwhile.
func (f *flooder) flood(count int, next func(i int) frames.Segment) (map[string]uint64, error) {
	before, err := f.verdicts(f.lbs...)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(floodPause)
	defer ticker.Stop()
	for i := range count {
		segment := next(i)
		frame, err := segment.Frame()
		if err == nil {
			err = f.socket.Send(frame)
		}
		if err != nil {
			return nil, err
		}
		if i%floodBatch != 0 {
			continue
		}
		select {
		case <-ticker.C:
		case <-f.ctx.Done():
			return nil, f.ctx.Err()
		}
	}
	after, err := f.verdicts(f.lbs...)
	for verdict, packets := range before {
		after[verdict] -= packets
	}
	return after, err
}

// held are how many entries the flood has, and how many there are, of all load balancers.
func (f *flooder) held() (flood, all int, err error) {
	for _, lb := range f.lbs {
		entries, err := f.entries(lb)
		if err != nil {
			return 0, 0, err
		}
		f.result.expect(len(entries) <= floodCapacity, "%s lists %d connections, it has room for %d", lb, len(entries), floodCapacity)
		all += len(entries)
		for _, one := range entries {
			if netip.MustParsePrefix(floodClientsNet).Contains(one.Client.Addr()) {
				flood++
			}
		}
	}
	return flood, all, nil
}

// judgeFlood measures what a flood did. Shares are of the packets that were sent.
func (f *flooder) judgeFlood(name string, sent int, counted map[string]uint64, verdicts ...string) error {
	flood, all, err := f.held()
	if err != nil {
		return err
	}
	sum := uint64(0)
	for _, verdict := range verdicts {
		sum += counted[verdict]
	}
	f.result.measure(name+"_sent", float64(sent))
	f.result.measure(name+"_entries", float64(flood))
	f.result.measure(name+"_entries_with_real", float64(all))
	f.result.expect(float64(sum) >= floodDelivered*float64(sent), "%s: %d sent, but only %d were counted as %v", name, sent, sum, verdicts)
	return nil
}

func (f *flooder) floodSYNs() error {
	counted, err := f.flood(floodSYNs, func(int) frames.Segment {
		segment := f.stranger()
		segment.SYN, segment.Echo = true, 0
		return segment
	})
	if err != nil {
		return err
	}
	if err := f.judgeFlood("syn_flood", floodSYNs, counted, "forwarded_new"); err != nil {
		return err
	}
	f.result.expect(f.result.Measurements["syn_flood_entries"] == 0, "SYNs took %.0f entries", f.result.Measurements["syn_flood_entries"])
	return nil
}

func (f *flooder) floodForged() error {
	counted, err := f.flood(floodForged, func(int) frames.Segment { return f.stranger() })
	if err != nil {
		return err
	}
	f.result.measure("forged_table_full", float64(counted["forwarded_table_full"]))
	f.result.expect(counted["forwarded_table_full"] > 0, "the table was never full: the flood proves nothing")
	return f.judgeFlood("forged", floodForged, counted, "forwarded_bad_cookie", "forwarded_added", "forwarded_table_full")
}

func (f *flooder) floodReplayed(overheard []frames.Segment) error {
	counted, err := f.flood(floodReplayed, func(i int) frames.Segment { return overheard[i%len(overheard)] })
	if err != nil {
		return err
	}
	// Those of connections that have ended meanwhile may not find their entry.
	return f.judgeFlood("replayed", floodReplayed, counted, "forwarded_by_table", "forwarded_added", "forwarded_table_full", "forwarded_by_cookie")
}

func (f *flooder) floodFINs(overheard []frames.Segment) error {
	counted, err := f.flood(floodFINs, func(i int) frames.Segment {
		segment := f.stranger()
		if i%2 == 0 {
			segment = overheard[i/2%len(overheard)]
			segment.Sequence += farSequence // a server's TCP does not believe it; a load balancer cannot know
		}
		segment.FIN = true
		return segment
	})
	if err != nil {
		return err
	}
	return f.judgeFlood("fin_flood", floodFINs, counted, "forwarded_by_table", "forwarded_added", "forwarded_table_full", "forwarded_by_cookie", "forwarded_bad_cookie")
}

// awaitForgotten waits until the flood has no entry any more.
func (f *flooder) awaitForgotten() error {
	begin := time.Now()
	err := await(f.ctx, tableSettles, "no entry is the flood's", func() error {
		flood, _, err := f.held()
		if err == nil && flood > 0 {
			err = fmt.Errorf("%d are", flood)
		}
		return err
	})
	f.result.measure("seconds_until_flood_is_forgotten", round(time.Since(begin)))
	return err
}
