// Which epoch living connections carry, for the rotation of keys.
package server

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/pin"
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

// echoCounting is what counting living connections takes of an agent's programs and maps.
type echoCounting struct {
	Translated  *ebpf.Map     `ebpf:"translated"`
	CountEchoes *ebpf.Program `ebpf:"count_echoes"`
}

// Echoes counts the living connections that carry cookies, by the parity of the epoch that their client has echoed last. Cost: some
// 100 ns for each connection and some for each place of the kernel's hash table; with address translation some microseconds for each that the kernel tracks.
func (s *Server) Echoes() (connections [2]uint64, err error) {
	return echoCounting{s.objects.Translated, s.objects.CountEchoes}.count()
}

// Living is how many connections Echoes counts, by what an agent has left pinned in dir, of this layout or an earlier one. It changes nothing there, and
// loads the program that counts alone: the verifier takes a hundred times longer for those that packets go through.
func Living(dir string) (connections uint64, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return 0, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadServer()
	if err != nil {
		return 0, fmt.Errorf("read the server's programs: %w", err)
	}
	pinned, err := pin.Instance{Dir: dir, Layout: Layout}.Load(spec, keptMaps)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, m := range pinned {
			err = errors.Join(err, m.Close())
		}
	}()
	if len(pinned) > 0 && pinned["hold_backs"] == nil {
		return 0, fmt.Errorf("count living connections: %s lacks pins: they were removed, or are of a newer version", dir)
	}
	var counting echoCounting
	if err := spec.LoadAndAssign(&counting, &ebpf.CollectionOptions{MapReplacements: pinned}); err != nil {
		return 0, fmt.Errorf("load what counts living connections: %w", err)
	}
	byParity, err := counting.count()
	return byParity[0] + byParity[1], errors.Join(err, counting.Translated.Close(), counting.CountEchoes.Close())
}

func (c echoCounting) count() (connections [2]uint64, err error) {
	if err := countTranslated(c.Translated, &connections); err != nil {
		return connections, err
	}
	walk, err := link.AttachIter(link.IterOptions{Program: c.CountEchoes})
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
