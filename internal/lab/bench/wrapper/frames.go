package wrapper

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
)

// FrameLength is how much the wrapper writes of a frame: all, or all that programs change.
const FrameLength = 96

// Offsets in frames of IPv4, and how much farther ports and echo are in those of IPv6, whose client's address ends with that of IPv4.
const (
	ipChecksumAt  = 14 + 10
	clientAt      = 14 + 12
	clientPortAt  = 14 + 20
	servicePortAt = clientPortAt + 2
	sequenceAt    = clientPortAt + 4
	ackAt         = clientPortAt + 8
	EchoAt        = 14 + 20 + 20 + 8 // behind NOP NOP TS and TSval
	longer        = 40 - 20
	client6At     = 14 + 8
	client6EndAt  = client6At + 12
)

// Cell says what frames a program is fed.
type Cell struct {
	Frame       [FrameLength]byte // the client's address and port are 0
	Behind      []byte            // the rest of the frame, the same for all flows
	Growth      int16             // of the frame, by the program under test; negative: it cuts off its end
	Flows       uint32            // distinct ones, up to 2^24
	CookieKey   cookie.Key
	CookieBits  uint8 // 0: no cookie
	EpochParity uint8
	IDs         uint16 // the flow's server is 1 + flow % IDs
	IndexShift  uint8  // of the index in the cookie's text; 0: no index
	IPv6        bool
	Answers     netip.Addr // valid: the frames are a server's answers, from this address; they differ by their client's port alone
	Answered    *Answered  // nil: the frames are of no connection that a load balancer has begun
}

// Answered makes frames follow a load balancer's answer to their clients' SYNs, as the first packets of connections with session tls do. The cookie that they
// echo is that answer's.
type Answered struct {
	Key     cookie.Key
	Options syncookie.Options
	Seconds uint64 // of the time of day: when it was
}

// Client is the address of a flow. Odd factors permute: up to 2^24 flows have addresses of their own in 10.0.0.0/8.
func Client(flow uint32) netip.AddrPort {
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], 10<<24|flow*0x9e3779b1&0xffffff)
	return netip.AddrPortFrom(netip.AddrFrom4(address), uint16(1024+flow*0x85ebca6b>>17))
}

// Server is the id of a flow's server.
func (c *Cell) Server(flow uint32) uint16 { return uint16(1 + flow%uint32(c.IDs)) }

// Client is the client of a flow of the cell's family.
func (c *Cell) Client(flow uint32) netip.AddrPort {
	client := Client(flow)
	if !c.IPv6 {
		return client
	}
	address, end := [16]byte(c.Frame[client6At:]), client.Addr().As4()
	copy(address[12:], end[:])
	return netip.AddrPortFrom(netip.AddrFrom16(address), client.Port())
}

func (c *Cell) servicePort() []byte {
	if c.IPv6 {
		return c.Frame[servicePortAt+longer:]
	}
	return c.Frame[servicePortAt:]
}

func (c *Cell) echo() []byte {
	if c.IPv6 {
		return c.Frame[EchoAt+longer:]
	}
	return c.Frame[EchoAt:]
}

// FrameOf returns the frame of a flow, with the cookie that the flow's server would write. index is that of a connection table.
func (c *Cell) FrameOf(flow uint32, index uint8) []byte {
	frame, own := c.whole(), c.own(flow, index)
	if c.IPv6 {
		binary.NativeEndian.PutUint32(frame[client6EndAt:], own.Address)
		binary.NativeEndian.PutUint16(frame[clientPortAt+longer:], own.Port[0])
		binary.NativeEndian.PutUint32(frame[EchoAt+longer:], own.Echo)
		return frame
	}
	binary.NativeEndian.PutUint32(frame[clientAt:], own.Address)
	binary.NativeEndian.PutUint16(frame[clientPortAt:], own.Port[0])
	binary.NativeEndian.PutUint16(frame[servicePortAt:], own.Port[1])
	binary.NativeEndian.PutUint32(frame[ackAt:], own.Acknowledged)
	binary.NativeEndian.PutUint32(frame[EchoAt:], own.Echo)
	binary.NativeEndian.PutUint16(frame[ipChecksumAt:], own.Check)
	return frame
}

func (c *Cell) whole() []byte { return slices.Concat(c.Frame[:], c.Behind) }

// own is what the flow's frame has of its own.
func (c *Cell) own(flow uint32, index uint8) (own benchBenchFlow) {
	client := Client(flow)
	address, service := client.Addr().As4(), c.servicePort()
	own.Port = [2]uint16{wire16(client.Port()), binary.NativeEndian.Uint16(service)}
	if c.Answers.IsValid() {
		address, own.Port = c.Answers.As4(), [2]uint16{binary.NativeEndian.Uint16(c.Frame[clientPortAt:]), wire16(client.Port())}
	}
	own.Address = binary.NativeEndian.Uint32(address[:])
	own.Echo, own.Acknowledged = binary.NativeEndian.Uint32(c.echo()), binary.NativeEndian.Uint32(c.Frame[ackAt:])
	if c.CookieBits != 0 {
		hash := cookie.FlowHash(c.CookieKey, c.Client(flow), binary.BigEndian.Uint16(service))
		text := uint16(index)<<c.IndexShift | c.Server(flow)
		own.Echo = wire32(flow<<c.CookieBits | uint32(cookie.Encode(c.CookieBits, uint32(c.EpochParity), text, hash)))
		if a := c.Answered; a != nil {
			timestamp := syncookie.Timestamp(c.CookieBits, uint32(c.EpochParity), c.Server(flow), hash)
			began := syncookie.Flow{Client: client, ServicePort: binary.BigEndian.Uint16(service), Sequence: binary.BigEndian.Uint32(c.Frame[sequenceAt:]) - 1, Timestamp: timestamp}
			own.Echo, own.Acknowledged = wire32(timestamp), wire32(syncookie.Make(a.Key, began, a.Options, a.Seconds)+1)
		}
	}
	sum := uint32(binary.BigEndian.Uint16(address[:2])) + uint32(binary.BigEndian.Uint16(address[2:]))
	for at := 14; at < clientPortAt; at += 2 {
		if at != ipChecksumAt {
			sum += uint32(binary.BigEndian.Uint16(c.Frame[at:]))
		}
	}
	sum = sum&0xffff + sum>>16
	own.Check = wire16(^uint16(sum + sum>>16))
	return own
}

func wire16(host uint16) uint16 { return host<<8 | host>>8 }

func wire32(host uint32) uint32 {
	return uint32(wire16(uint16(host)))<<16 | uint32(wire16(uint16(host>>16)))
}

// Draw draws from the cell's flows, which are numbered from 0, as many as count, or as a list holds.
func (c *Cell) Draw(count uint32, seed uint64) []uint32 {
	random := rand.New(rand.NewPCG(seed, 0))
	out := make([]uint32, min(count, Listed))
	for i := range out {
		out[i] = random.Uint32N(c.Flows)
	}
	return out
}
