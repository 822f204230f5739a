// Which epoch living connections carry, for the rotation of keys.
package server

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
)

// turn writes down which key cookies are written with from now on, and since when, if that has changed.
func (s *Server) turn(rows map[plan.VIPKey]plan.AgentRow) error {
	var last serverTurn
	if err := s.objects.LastTurn.Lookup(uint32(0), &last); err != nil {
		return fmt.Errorf("read when cookies turned: %w", err)
	}
	for _, row := range rows {
		if row.Flags == 0 || row.Flags&plan.AgentHistory != 0 || last.Known == 1 && uint32(row.EpochParity) == last.Parity {
			continue
		}
		next := serverTurn{SinceNs: last.SinceNs, Parity: uint32(row.EpochParity), Known: 1}
		if last.Known == 1 {
			var err error
			if next.TurnedNs, err = monotonic(); err != nil {
				return err
			}
		}
		if err := s.objects.LastTurn.Put(uint32(0), next); err != nil {
			return fmt.Errorf("write when cookies turned: %w", err)
		}
		return nil
	}
	return nil
}

// begin writes down since when cookies are written, unless an earlier process has.
func (s *Server) begin() error {
	var last serverTurn
	err := s.objects.LastTurn.Lookup(uint32(0), &last)
	if err == nil && last.SinceNs == 0 {
		if last.SinceNs, err = monotonic(); err == nil {
			err = s.objects.LastTurn.Put(uint32(0), last)
		}
	}
	if err != nil {
		return fmt.Errorf("write since when cookies are written: %w", err)
	}
	return nil
}

// monotonic is the clock of bpf_ktime_get_ns.
func monotonic() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}

// Echoes counts the living connections that carry cookies, by the parity of the epoch that their client has echoed last. Cost: some
// 100 ns for each connection and some for each place of the kernel's hash table; with address translation some microseconds for each that the kernel tracks.
func (s *Server) Echoes() (connections [2]uint64, err error) {
	if err := s.countTranslated(&connections); err != nil {
		return connections, err
	}
	walk, err := link.AttachIter(link.IterOptions{Program: s.objects.CountEchoes})
	if err != nil {
		return connections, fmt.Errorf("walk the TCP sockets: %w", err)
	}
	defer walk.Close()
	reader, err := walk.Open()
	if err != nil {
		return connections, fmt.Errorf("walk the TCP sockets: %w", err)
	}
	defer reader.Close()
	parities := make([]byte, 64<<10)
	for {
		n, err := reader.Read(parities)
		for _, parity := range parities[:n] {
			connections[parity&1]++
		}
		if err == io.EOF {
			return connections, nil
		}
		if err != nil {
			return connections, fmt.Errorf("walk the TCP sockets: %w", err)
		}
	}
}
