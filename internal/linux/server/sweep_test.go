package server

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// Walks free what is to be freed on every kernel, and what a packet has come for since the walk stays.
func TestWalksFreeEntries(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, err := Open("", Limits{Translated: 8192})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	flow := func(i uint32) (key translatedFlow) {
		binary.BigEndian.PutUint32(key.Client[:], i)
		return key
	}
	const ended = 64 | 128
	for i := range uint32(3000) {
		state := translatedState{Tag: uint16(i)}
		if i%3 == 0 {
			state.State = ended
		}
		if err := s.objects.Translated.Put(flow(i), state); err != nil {
			t.Fatal(err)
		}
	}
	for walk, want := range []uint32{3000, 3000, 3000, 2000, 2000} {
		if use, err := s.SweepTranslated(false); err != nil || use != (TranslatedUse{Entries: want, Room: 8192}) {
			t.Fatalf("walk %d: %+v, %v; %d are to be left", walk, use, err, want)
		}
	}
	if freed, err := s.freeTranslated(flow(1)); freed || err != nil {
		t.Errorf("an entry of a packet that has just come is freed: %t, %v", freed, err)
	}
	var state translatedState
	if err := s.objects.Translated.Lookup(flow(1), &state); err != nil || state.Tag != 1 {
		t.Errorf("it has %+v, %v", state, err)
	}
	for range SilentSweeps + 1 {
		if _, err := s.SweepTranslated(true); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.objects.Translated.Lookup(flow(1), &state); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a silent one is there: %v", err)
	}
}
