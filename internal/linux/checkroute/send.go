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

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
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
	return p, wire.CompleteChecksum(p.IP)
}
