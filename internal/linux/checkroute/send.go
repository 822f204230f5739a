// The first packet of a check, which the load balancer's program sends: where a driver drops what XDP redirects, no answer comes.
package checkroute

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Packet is an IP packet to a server, with complete checksums.
type Packet struct {
	Service uint32 // its number in the load balancer's tables
	Server  uint16 // id
	Direct  bool   // it is addressed to the server itself, else to the VIP
	IP      []byte
}

// A Sender is the load balancer's program. Send may block for a moment.
type Sender interface {
	Send(Packet) error
	Try() error // whether Send works
	// ByXDP tells whether clients' packets leave by a device by a redirect in native mode.
	ByXDP(ifindex uint32) bool
}

// noSender leaves all packets to the kernel.
type noSender struct{}

func (noSender) Send(Packet) error { return nil }
func (noSender) Try() error        { return nil }
func (noSender) ByXDP(uint32) bool { return false }

// Run has the load balancer's program send, in the calling thread's network namespace, what it is to send, until ctx ends. Without it the kernel sends all.
func (c *Checks) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	reader, err := ringbuf.NewReader(c.objects.Handed)
	if err != nil {
		return fmt.Errorf("read packets of health checks: %w", err)
	}
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	c.sends.Store(true)
	defer c.sends.Store(false)
	var record ringbuf.Record
	for {
		switch err := reader.ReadInto(&record); {
		case errors.Is(err, ringbuf.ErrClosed):
			return nil
		case err != nil:
			return errors.Join(fmt.Errorf("read packets of health checks: %w", err), reader.Close())
		}
		packet, ok := parseHanded(record.RawSample)
		if !ok {
			continue
		}
		if err := c.sender.Send(packet); err != nil {
			c.refused.Store(&err)
		}
	}
}

// Refused is why packets that the load balancer's program should send are left to the kernel, nil: they are not.
func (c *Checks) Refused() error {
	if refused := c.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// try finds out whether packets can be sent, if that is not known or they could not. needed: some are to be sent. Its caller holds mu.
func (c *Checks) try(needed bool) {
	if !needed {
		c.tried = false
		c.refused.Store(nil)
		return
	}
	if c.tried && c.refused.Load() == nil {
		return
	}
	c.tried = true
	if err := c.sender.Try(); err != nil {
		c.refused.Store(&err)
	} else {
		c.refused.Store(nil)
	}
}

// byXDP tells whether checks of servers behind a device begin with a packet of the load balancer's program.
func (c *Checks) byXDP(ifindex uint32) bool {
	return ifindex != 0 && c.sends.Load() && c.refused.Load() == nil && c.sender.ByXDP(ifindex)
}

func parseHanded(sample []byte) (p Packet, ok bool) {
	var head checkCheckHanded
	front := int(unsafe.Offsetof(head.Packet))
	if len(sample) < front {
		return p, false
	}
	p.Service, p.Server = binary.NativeEndian.Uint32(sample), binary.NativeEndian.Uint16(sample[unsafe.Offsetof(head.Id):])
	p.Direct = sample[unsafe.Offsetof(head.Direct)] != 0
	length := int(binary.NativeEndian.Uint32(sample[unsafe.Offsetof(head.Length):]))
	if length > len(sample)-front {
		return p, false
	}
	p.IP = sample[front : front+length]
	return p, completeChecksum(p.IP)
}

// completeChecksum writes the checksum of TCP or UDP, which the kernel leaves to devices. ok: the packet has its headers.
func completeChecksum(packet []byte) (ok bool) {
	const ipv4Header, ipv6Header = 20, 40
	var addresses, transport []byte
	var protocol byte
	switch {
	case len(packet) >= ipv4Header && packet[0] == 0x45:
		if binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 { // a fragment: its checksum is that of the whole datagram
			return true
		}
		addresses, transport, protocol = packet[12:20], packet[ipv4Header:], packet[9]
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		addresses, transport, protocol = packet[8:40], packet[ipv6Header:], packet[6]
	default:
		return false
	}
	at := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[protocol]
	if at == 0 || len(transport) < at+2 {
		return false
	}
	binary.BigEndian.PutUint16(transport[at:], 0)
	sum := addWords(addWords(uint32(protocol)+uint32(len(transport)), addresses), transport)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	check := ^uint16(sum)
	if check == 0 && protocol == unix.IPPROTO_UDP { // 0 means none
		check = 0xffff
	}
	binary.BigEndian.PutUint16(transport[at:], check)
	return true
}

// addWords adds 16-bit words (RFC 1071) of at most some kilobytes.
func addWords(sum uint32, words []byte) uint32 {
	for len(words) >= 2 {
		sum += uint32(binary.BigEndian.Uint16(words))
		words = words[2:]
	}
	if len(words) == 1 {
		sum += uint32(words[0]) << 8
	}
	return sum
}
