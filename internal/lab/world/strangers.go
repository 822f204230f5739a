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

// StrangersNet is where strangers seem to be.
const StrangersNet = "203.0.113.0/24"

// floodPause is between the batches of a flood.
const floodPause = 8 * time.Millisecond

// Strangers send frames to the router as if they came from clients far away, which do not exist.
type Strangers struct {
	*frames.Socket
	From, To net.HardwareAddr
	trial    *Trial
}

// OpenStrangers also leads what is sent back to nowhere: the clients' host does not forward.
func (t *Trial) OpenStrangers() *Strangers {
	s := &Strangers{trial: t, From: script.Must(t.Space(ClientNode).MAC("eth0")), To: script.Must(t.Space(RouterNode).MAC(ClientNode))}
	back := netspace.NextHop{Gateway: netip.MustParseAddr(t.Topology.SourceAddresses(false)[0]), Interface: ClientNode}
	script.Check(t.Space(RouterNode).Route(netip.MustParsePrefix(StrangersNet), 0, back))
	s.Socket = script.Must(t.OpenFrames(ClientNode, "eth0"))
	return s
}

// Address is a stranger's.
func (s *Strangers) Address() netip.AddrPort {
	address := netip.MustParsePrefix(StrangersNet).Addr().As4()
	address[3] = byte(s.trial.Random.Uint32())
	return netip.AddrPortFrom(netip.AddrFrom4(address), uint16(1024+s.trial.Random.IntN(64000)))
}

// Flood sends frames at a pace until there is no next.
func (s *Strangers) Flood(perSecond int, next func(i int) (frame []byte, more bool)) {
	ticker := time.NewTicker(floodPause)
	defer ticker.Stop()
	batch := max(1, int(floodPause.Seconds()*float64(perSecond)))
	for i := 0; ; i++ {
		frame, more := next(i)
		if !more {
			return
		}
		script.Check(s.Send(frame))
		if i%batch != 0 {
			continue
		}
		select {
		case <-ticker.C:
		case <-s.trial.Context.Done():
			script.Check(context.Cause(s.trial.Context))
		}
	}
}
