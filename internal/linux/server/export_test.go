// What tests of the other package need of this one's inside.
package server

import (
	"time"

	"github.com/cilium/ebpf"
)

// AttachTC runs the programs at tc only.
func (s *Server) AttachTC(ifindex int) error {
	for _, place := range s.places(ifindex) {
		if err := place.Attach(); err != nil {
			return err
		}
	}
	return nil
}

// LimitWord is the state of a dynamic limit.
func (s *Server) LimitWord(acceptance uint16) (word uint64) {
	if err := s.objects.Limits.Lookup(uint32(acceptance), &word); err != nil {
		panic(err)
	}
	return word
}

// MapsOfAcceptance are those that SYNs and connections of dispatch choices change.
func (s *Server) MapsOfAcceptance() []*ebpf.Map {
	m := &s.objects.serverMaps
	return []*ebpf.Map{m.Limits, m.Loads, m.LiveConnections, m.PassedOn}
}

// LiveMissed is how many changes of sockets' state the program that counts connections did not see, as the kernel runs no program inside itself.
func (s *Server) LiveMissed() (uint64, error) {
	stats, err := s.live.Stats()
	if err != nil {
		return 0, err
	}
	return stats.RecursionMisses, nil
}

// LiveProgram is the id of the program that counts connections.
func (s *Server) LiveProgram() (ebpf.ProgramID, error) {
	info, err := s.live.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// AgeNotes makes the notes of probes as old as they are after a time.
func (s *Server) AgeNotes(by time.Duration) error {
	var key translatedFlow
	var note uint32
	notes := s.objects.Probes.Iterate()
	for notes.Next(&key, &note) {
		if err := s.objects.Probes.Put(key, note-uint32(by>>timeShift)<<fateBits); err != nil {
			return err
		}
	}
	return notes.Err()
}
