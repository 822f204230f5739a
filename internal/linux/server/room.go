// Room for translated connections, and who has it.
package server

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Limits are how much a server has room for.
type Limits struct {
	// Translated is how many connections whose addresses the host translates carry cookies at once. 0: as the memory is.
	Translated uint32
}

// Implementation constants of the room by memory: an entry takes 136 bytes, a thousandth of the memory may be taken.
const (
	memoryPerTranslated = 128 << 10
	leastTranslated     = 1 << 16
	mostTranslated      = 1 << 20
)

// limitTo gives maps their room. A map that is there keeps its own, with what living connections have in it.
func (s *Server) limitTo(spec *ebpf.CollectionSpec, limits Limits) error {
	room := limits.Translated
	if room == 0 {
		var system unix.Sysinfo_t
		if err := unix.Sysinfo(&system); err != nil {
			return fmt.Errorf("read how much memory there is: %w", err)
		}
		room = uint32(min(max(uint64(system.Totalram)*uint64(system.Unit)/memoryPerTranslated, leastTranslated), mostTranslated))
	}
	if s.pins.Dir != "" {
		have, err := s.pins.Room("translated")
		if err != nil {
			return err
		}
		if have != 0 {
			room = have
		}
	}
	spec.Maps["translated"].MaxEntries = room
	return nil
}

// sweeping is what walks through the translated connections remember. Its lock is held while one is under way.
type sweeping struct {
	sync.Mutex
	known   bool
	missing uint64 // of the entries begun, those that were neither there nor freed
	freed   uint64
	evicted uint64
}

// TranslatedUse is how full the room for translated connections is.
type TranslatedUse struct {
	Entries uint32 // of connections that have not ended, or only just
	Room    uint32
	Evicted uint64 // since the process began: connections that lost their entry for others, alive or not
}

// SweepTranslated frees entries of connections that have ended, a few calls after their last packet, and counts the others. ages: this call counts for
// the silence of others, too; one that is silent for SilentSweeps such calls is freed. It may be called at any time. Cost: some 200 ns for each.
func (s *Server) SweepTranslated(ages bool) (use TranslatedUse, err error) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	o := &s.objects
	use.Room = o.Translated.MaxEntries()
	var counts uint32
	if ages {
		counts = 1
	}
	if err := errors.Join(o.SweepAges.Set(counts), o.SweepPresent.Set(uint32(0))); err != nil {
		return use, fmt.Errorf("begin a walk through the translated connections: %w", err)
	}
	var begun uint64
	if err := o.TranslatedBegun.Get(&begun); err != nil { // before: what comes meanwhile may be counted as there
		return use, fmt.Errorf("read how many translated connections began: %w", err)
	}
	ended, err := s.endedTranslated()
	if err != nil {
		return use, fmt.Errorf("walk through the translated connections: %w", err)
	}
	if err := o.SweepPresent.Get(&use.Entries); err != nil {
		return use, fmt.Errorf("count the translated connections: %w", err)
	}
	for _, key := range ended {
		freed, err := s.freeTranslated(key)
		if err != nil {
			return use, err
		}
		if freed {
			use.Entries--
			s.sweeping.freed++
		}
	}
	s.sweeping.count(begun, &use)
	return use, nil
}

// SilentSweeps is how many calls of SweepTranslated that count a connection may be silent for.
const SilentSweeps = 63

// endedTranslated lists entries that are to be freed.
func (s *Server) endedTranslated() (keys []translatedFlow, err error) {
	walk, err := link.AttachIter(link.IterOptions{Program: s.objects.Sweep, Map: s.objects.Translated})
	if err != nil {
		return nil, err
	}
	defer walk.Close()
	reader, err := walk.Open()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	raw, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	const size = int(unsafe.Sizeof(translatedFlow{}))
	for ; len(raw) >= size; raw = raw[size:] {
		keys = append(keys, *(*translatedFlow)(unsafe.Pointer(&raw[0])))
	}
	return keys, nil
}

// freeTranslated deletes an entry, unless a packet has come for it since.
func (s *Server) freeTranslated(key translatedFlow) (freed bool, err error) {
	var state translatedState
	err = s.objects.Translated.LookupAndDelete(key, &state)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err == nil && state.State&SilentSweeps == 0 {
		if err = s.objects.Translated.Update(key, state, ebpf.UpdateNoExist); err == nil || errors.Is(err, ebpf.ErrKeyExist) {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("free the entry of a translated connection: %w", err)
	}
	return true, nil
}

// count finds out how many entries others took. The kernel does not tell; it takes none while there is room.
func (s *sweeping) count(begun uint64, use *TranslatedUse) {
	missing := begun - s.freed - uint64(use.Entries)
	if more := int64(missing - s.missing); s.known && more > 0 && uint64(use.Entries) > uint64(use.Room)/2 {
		s.evicted += uint64(more)
	}
	s.known, s.missing, use.Evicted = true, missing, s.evicted
}
