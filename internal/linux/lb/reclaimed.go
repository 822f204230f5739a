// Connections that had ended and whose index others took.
package lb

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/ballast-lb/ballast/internal/linux/connections"
)

// Reclaimed tells of connections that had ended and whose index packets of others took before a sweep came by.
type Reclaimed struct {
	lb     *LB
	reader *ringbuf.Reader
	record ringbuf.Record
	close  func() error
}

// WatchReclaimed lets the data path tell, from now until Close, also of what an earlier process has not read. There is one watch at a time.
func (lb *LB) WatchReclaimed() (*Reclaimed, error) {
	reader, err := ringbuf.NewReader(lb.objects.EndedConnections)
	if err != nil {
		return nil, fmt.Errorf("read ended connections: %w", err)
	}
	r := &Reclaimed{lb: lb, reader: reader}
	r.close = sync.OnceValue(func() error { return errors.Join(lb.objects.LogEnded.Set(uint32(0)), reader.Close()) })
	if err := lb.objects.LogEnded.Set(uint32(1)); err != nil {
		return nil, errors.Join(fmt.Errorf("let the data path report ended connections: %w", err), r.Close())
	}
	return r, nil
}

// Next waits for a connection and returns its service's number; ipv6 tells the family of a service by it. After Close it returns
// os.ErrClosed.
func (r *Reclaimed) Next(ipv6 func(service uint32) bool, out *connections.Connection) (service uint32, reason connections.EndReason, err error) {
	if err := r.reader.ReadInto(&r.record); err != nil {
		return 0, 0, err
	}
	var raw endedConnection
	if len(r.record.RawSample) < int(unsafe.Sizeof(raw)) {
		return 0, 0, fmt.Errorf("read an ended connection: %d bytes are too few", len(r.record.RawSample))
	}
	raw = *(*endedConnection)(unsafe.Pointer(&r.record.RawSample[0]))
	if reason, err = connections.DescribeEnded(&raw.connection, raw.client, ipv6(raw.service), out); err != nil {
		return 0, 0, fmt.Errorf("read an ended connection: %w", err)
	}
	out.Entry = raw.entry
	return raw.service, reason, nil
}

// endedConnection is struct ended_connection.
type endedConnection struct {
	connection     connections.Entry
	client         connections.Address
	service, entry uint32
}

// Close ends the watch.
func (r *Reclaimed) Close() error { return r.close() }

// ReclaimedLost is how many found no room while somebody watched, since this process began.
func (lb *LB) ReclaimedLost() (lost uint64, err error) {
	if err := lb.objects.LogLost.Get(&lost); err != nil {
		return 0, fmt.Errorf("read how many ended connections were lost: %w", err)
	}
	return lost, nil
}

// RecoverConnections is Connections().Recover with this kernel's grace periods.
func (lb *LB) RecoverConnections(tables []connections.Table) (freed int, err error) {
	return lb.Connections().Recover(tables, Grace)
}
