// How busy a server is with the services that it may pass connections of on (dispatch choices).
package server

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/ballast-lb/ballast/internal/plan"
)

// hookLive is the pin of what counts living connections. It is on no device.
const hookLive = "live"

// beginAcceptances makes what the maps say of services whose rows are to be published that of new ones, unless rows that are published name
// their places: then only a dynamic limit begins anew that is asked to begin elsewhere.
func (s *Server) beginAcceptances(want map[plan.VIPKey]plan.AgentRow) error {
	have := map[uint16]plan.AgentRow{}
	for _, published := range s.rows {
		have[published.row.Acceptance] = published.row
	}
	for _, row := range want {
		before, known := have[row.Acceptance]
		if row.Acceptance == 0 || known && before.Policy == row.Policy && before.Threshold == row.Threshold {
			continue
		}
		have[row.Acceptance] = row
		at := uint32(row.Acceptance)
		err := s.objects.Limits.Put(at, uint64(row.Threshold)<<32)
		if !known {
			err = errors.Join(err, s.objects.Loads.Put(at, uint32(0)), s.objects.LiveConnections.Put(at, int64(0)))
		}
		if err != nil {
			return fmt.Errorf("begin the acceptance of a service: %w", err)
		}
	}
	return nil
}

// SetLoad says how busy this host is with the service of an acceptance: where the kernel's connections are its load, what their counter
// lacks (it may be negative); else, the load.
func (s *Server) SetLoad(acceptance uint16, load uint32) error {
	if err := s.objects.Loads.Put(uint32(acceptance), load); err != nil {
		return fmt.Errorf("write the load of acceptance %d: %w", acceptance, err)
	}
	return nil
}

// Load is what SetLoad has said last.
func (s *Server) Load(acceptance uint16) (load uint32, err error) {
	if err := s.objects.Loads.Lookup(uint32(acceptance), &load); err != nil {
		return 0, fmt.Errorf("read the load of acceptance %d: %w", acceptance, err)
	}
	return load, nil
}

// Live is how many more connections of an acceptance have begun than ended, as far as CountLive was there to see.
func (s *Server) Live(acceptance uint16) (connections int64, err error) {
	if err := s.objects.LiveConnections.Lookup(uint32(acceptance), &connections); err != nil {
		return 0, fmt.Errorf("read the connections of acceptance %d: %w", acceptance, err)
	}
	return connections, nil
}

// Limit is where the dynamic limit of an acceptance is.
func (s *Server) Limit(acceptance uint16) (limit uint32, err error) {
	var word uint64
	if err := s.objects.Limits.Lookup(uint32(acceptance), &word); err != nil {
		return 0, fmt.Errorf("read the limit of acceptance %d: %w", acceptance, err)
	}
	return uint32(word >> 32), nil
}

// CountLive has the connections of the calling thread's network namespace counted from now on, by a program at the kernel's tracepoint for
// changes of sockets' state. It goes on after this process. That of an earlier one ends.
func (s *Server) CountLive() error {
	if s.live != nil {
		return nil
	}
	spec, err := loadServer()
	if err != nil {
		return fmt.Errorf("read the server's programs: %w", err)
	}
	namespace, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("find the network namespace: %w", err)
	}
	if err := spec.Variables["counted_namespace"].Set(uint32(namespace.Sys().(*syscall.Stat_t).Ino)); err != nil {
		return fmt.Errorf("name the network namespace: %w", err)
	}
	var loaded struct {
		Program *ebpf.Program `ebpf:"count_live"`
	}
	m := &s.objects.serverMaps
	if err := spec.LoadAndAssign(&loaded, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"served_rows": m.ServedRows, "served_services": m.ServedServices, "live_connections": m.LiveConnections,
	}}); err != nil {
		return fmt.Errorf("load the program that counts connections: %w", err)
	}
	s.pins.Ask(hookLive, 0)
	attached, err := link.AttachTracing(link.TracingOptions{Program: loaded.Program})
	if err == nil {
		if err = errors.Join(s.pins.Undo(hookLive, 0), s.pins.Hold(hookLive, 0, attached)); err != nil {
			attached.Close()
		}
	}
	if err != nil {
		loaded.Program.Close()
		return fmt.Errorf("count connections: %w", err)
	}
	s.live = loaded.Program
	return nil
}

// IgnoreLive ends the counting, also that of an earlier process.
func (s *Server) IgnoreLive() error {
	s.live.Close()
	s.live = nil
	return s.pins.Undo(hookLive, 0)
}
