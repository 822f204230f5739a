package server

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
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

// An upgrade keeps the room of an earlier layout, with what living connections have in it.
func TestAnUpgradeKeepsTheRoomOfTranslatedConnections(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root, err := os.MkdirTemp("", "ballast-srv-")
	if err == nil {
		err = pin.EnsureBPFFS(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "test")
	t.Cleanup(func() {
		if err := errors.Join(attach.Detach(dir), pin.RemoveBPFFS(root), os.Remove(root)); err != nil {
			t.Error(err)
		}
	})
	folder := filepath.Join(dir, "agent-v1")
	spec, err := loadServer()
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := spec.Maps["translated"].Copy()
	before.Name, before.MaxEntries, before.Pinning = "translated", 2048, ebpf.PinByName
	m, err := ebpf.NewMapWithOptions(before, ebpf.MapOptions{PinPath: folder})
	if err == nil {
		err = errors.Join(m.Put(translatedFlow{ClientPort: [2]byte{7}}, translatedState{State: 1, Tag: 7}), m.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, Limits{Translated: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if use, err := s.SweepTranslated(false); err != nil || use != (TranslatedUse{Entries: 1, Room: 2048}) {
		t.Errorf("%+v, %v", use, err)
	}
	var state translatedState
	if err := s.objects.Translated.Lookup(translatedFlow{ClientPort: [2]byte{7}}, &state); err != nil || state.Tag != 7 {
		t.Errorf("%+v, %v", state, err)
	}
}
