// Outsiders: packets of clients that do not exist.
package world

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// OutsidersNet is where outsiders seem to be.
const OutsidersNet = "203.0.113.0/24"

// floodPause is between the batches of a flood.
const floodPause = 8 * time.Millisecond

// Outsiders send frames to the router as if they came from clients far away, which do not exist.
type Outsiders struct {
	*frames.Socket
	From, To net.HardwareAddr
	clients  *Clients
}

// OpenOutsiders also leads what is sent back to nowhere: the clients' host does not forward.
func (c *Clients) OpenOutsiders() *Outsiders {
	o := &Outsiders{clients: c, From: script.Must(c.network.lab.Space(ClientNode).MAC("eth0")), To: script.Must(c.network.lab.Space(RouterNode).MAC(ClientNode))}
	back := netspace.NextHop{Gateway: netip.MustParseAddr(c.network.SourceAddresses(false)[0]), Interface: ClientNode}
	script.Check(c.network.lab.Space(RouterNode).Route(netip.MustParsePrefix(OutsidersNet), 0, back))
	o.Socket = script.Must(c.network.OpenFrames(ClientNode, "eth0"))
	return o
}

// Address is an outsider's.
func (o *Outsiders) Address() netip.AddrPort {
	address := netip.MustParsePrefix(OutsidersNet).Addr().As4()
	address[3] = byte(o.clients.random.Uint32())
	return netip.AddrPortFrom(netip.AddrFrom4(address), uint16(1024+o.clients.random.IntN(64000)))
}

// Flood sends frames at a rate until there is no next.
func (o *Outsiders) Flood(perSecond int, next func(i int) (frame []byte, more bool)) {
	ticker := time.NewTicker(floodPause)
	defer ticker.Stop()
	batch := max(1, int(floodPause.Seconds()*float64(perSecond)))
	for i := 0; ; i++ {
		frame, more := next(i)
		if !more {
			return
		}
		script.Check(o.Send(frame))
		if i%batch != 0 {
			continue
		}
		select {
		case <-ticker.C:
		case <-o.clients.network.lab.Context.Done():
			script.Check(context.Cause(o.clients.network.lab.Context))
		}
	}
}
