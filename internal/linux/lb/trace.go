// The trace: a stream of what became of packets.
package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
)

// TraceHead is how many bytes of a frame an event has at most.
const TraceHead = len(lbTracedPacket{}.Head)

// TraceFilter chooses packets; zero fields match anything.
type TraceFilter struct {
	Service    uint32 // number
	Client     netip.Addr
	ClientPort uint16
	OneOf      uint32 // of so many packets one is traced, by chance; 0: all are
}

// TraceEvent tells where a packet went and why.
type TraceEvent struct {
	Time                time.Time
	Interface           int    // that the packet came by
	StandsFor           uint32 // packets: of so many one is traced
	Headers             []byte // of the frame as it came, without what the last of them carries
	FrameLength         uint32
	Source, Destination netip.AddrPort
	Protocol            uint8
	Service             uint32 // number, 0: none
	Server              uint16 // id, 0: none
	Stops               []uint16
	Verdict             uint8
	TCPFlags            string
	Length              uint16
	Timestamp, Echo     uint32         // TSval and TSecr
	Session             *TracedSession // nil: it is no ClientHello of a service with session tls
}

// A Trace is the stream of events while tracing is on.
type Trace struct {
	lb     *LB
	reader *ringbuf.Reader
	close  func() error
}

// StartTrace turns tracing on. There is one trace at a time.
func (lb *LB) StartTrace(filter TraceFilter) (*Trace, error) {
	value := lbTraceFilter{Service: filter.Service, ClientPort: wire.Port(filter.ClientPort), OneOf: filter.OneOf}
	if filter.Client.IsValid() {
		value.Client = wire.Words(filter.Client.Unmap())
	}
	if err := lb.objects.TraceFilters.Put(uint32(0), value); err != nil {
		return nil, fmt.Errorf("set the trace's filter: %w", err)
	}
	reader, err := ringbuf.NewReader(lb.objects.TraceEvents)
	if err != nil {
		return nil, fmt.Errorf("read trace events: %w", err)
	}
	t := &Trace{lb: lb, reader: reader}
	t.close = sync.OnceValue(func() error { return errors.Join(lb.objects.TraceEnabled.Set(uint32(0)), reader.Close()) })
	if err := errors.Join(drain(reader), lb.objects.TraceEnabled.Set(uint32(1))); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// drain drops what an earlier trace left unread.
func drain(events *ringbuf.Reader) error {
	events.SetDeadline(time.Unix(1, 0))
	for {
		if _, err := events.Read(); err != nil {
			events.SetDeadline(time.Time{})
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
	}
}

// Allow sets how many events may come until it is called again; a flood of packets is not a flood of events.
func (t *Trace) Allow(events int32) (suppressed uint32, err error) {
	var value lbTraceFilter
	if err := t.lb.objects.TraceFilters.Lookup(uint32(0), &value); err != nil {
		return 0, err
	}
	suppressed, value.Suppressed, value.Budget = value.Suppressed, 0, events
	return suppressed, t.lb.objects.TraceFilters.Put(uint32(0), value)
}

// Sample lets one of so many packets be traced from now on.
func (t *Trace) Sample(oneOf uint32) error {
	var value lbTraceFilter
	if err := t.lb.objects.TraceFilters.Lookup(uint32(0), &value); err != nil {
		return err
	}
	value.OneOf = oneOf
	return t.lb.objects.TraceFilters.Put(uint32(0), value)
}

// Next waits for an event. After Close it returns os.ErrClosed.
func (t *Trace) Next() (TraceEvent, error) {
	record, err := t.reader.Read()
	if err != nil {
		return TraceEvent{}, err
	}
	return readEvent(record.RawSample)
}

func readEvent(sample []byte) (TraceEvent, error) {
	var raw lbTraceEvent
	if len(sample) < int(unsafe.Sizeof(raw)) {
		return TraceEvent{}, fmt.Errorf("read trace event: %d bytes are too few", len(sample))
	}
	raw = *(*lbTraceEvent)(unsafe.Pointer(&sample[0]))
	event := TraceEvent{
		Time: onWall(raw.TimeNs), Interface: int(raw.Frame.Interface), StandsFor: raw.Frame.StandsFor, FrameLength: raw.Frame.Length,
		Source:      wire.AddrPort(raw.Source, raw.SourcePort, raw.Ipv6 != 0),
		Destination: wire.AddrPort(raw.Destination, raw.DestinationPort, raw.Ipv6 != 0),
		Protocol:    raw.Protocol, Service: raw.Service, Server: raw.Server, Verdict: raw.Verdict,
		TCPFlags: tcpFlags(raw.TcpFlags), Length: raw.Length, Timestamp: raw.Timestamp, Echo: raw.Echo, Session: tracedSession(&raw.Session),
	}
	event.Headers = onlyHeaders(raw.Frame.Head[:min(int(raw.Frame.Copied), len(raw.Frame.Head))], event.Source.Addr(), event.Destination.Addr())
	for _, stop := range raw.Stops[:min(int(raw.StopsCount), len(raw.Stops))] {
		if stop != 0 {
			event.Stops = append(event.Stops, stop)
		}
	}
	return event, nil
}

// onWall is the time of day of a moment of CLOCK_MONOTONIC, in ns.
func onWall(monotonic uint64) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(int64(monotonic) - now.Nano()))
}

// Close turns tracing off. Closing again does nothing, also when another trace has begun since.
func (t *Trace) Close() error { return t.close() }

func tcpFlags(bits uint8) string {
	var names []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
