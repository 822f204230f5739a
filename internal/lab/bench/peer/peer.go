// Package peer loads XDP programs of other load balancers, compiled by whoever compares them, and fills their maps as a file describes.
package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Peer is a loaded program.
type Peer struct {
	File
	program    *ebpf.Program
	collection *ebpf.Collection
	inner      []*ebpf.Map
}

// Open loads the program that a file describes, and fills its maps. Nothing is pinned or attached.
func Open(path string) (*Peer, error) {
	file, err := Load(path)
	if err != nil {
		return nil, err
	}
	p := &Peer{File: *file}
	if err := p.load(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("load %s: %w", path, err), p.Close())
	}
	return p, nil
}

func (p *Peer) load(dir string) error {
	object := p.Object
	if !filepath.IsAbs(object) {
		object = filepath.Join(dir, object)
	}
	if _, err := os.Stat(object); err != nil {
		return err
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return err
	}
	if err := p.prepare(spec); err != nil {
		return err
	}
	if p.collection, err = ebpf.NewCollection(spec); err != nil {
		return err
	}
	p.program = p.collection.Programs[p.Name(spec)]
	for _, fill := range p.Inner {
		if err := p.putInner(spec, fill); err != nil {
			return fmt.Errorf("map %s: %w", fill.Map, err)
		}
	}
	for _, fill := range p.Maps {
		if err := p.put(fill); err != nil {
			return fmt.Errorf("map %s: %w", fill.Map, err)
		}
	}
	for _, call := range p.TailCalls {
		if err := p.putProgram(spec, call); err != nil {
			return fmt.Errorf("map %s: %w", call.Map, err)
		}
	}
	_, err = p.Counted()
	return err
}

// prepare sets what must be known when the object is loaded.
func (p *Peer) prepare(spec *ebpf.CollectionSpec) error {
	name := p.Name(spec)
	if name == "" {
		return fmt.Errorf("there is no program %q: it has %s", p.Program, known(spec.Programs))
	}
	called := []string{name}
	for _, call := range p.TailCalls {
		if spec.Programs[call.Program] == nil {
			return fmt.Errorf("there is no program %q to call: it has %s", call.Program, known(spec.Programs))
		}
		called = append(called, call.Program)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		for _, entry := range m.Contents {
			if call, ok := entry.Value.(string); ok { // a map of programs that the object itself fills
				called = append(called, call)
			}
		}
	}
	for other, program := range spec.Programs {
		if !slices.Contains(called, other) {
			delete(spec.Programs, other) // it may be for hooks that this kernel does not have
			continue
		}
		program.Type, program.AttachType = ebpf.XDP, ebpf.AttachXDP
		program.Flags |= unix.BPF_F_XDP_HAS_FRAGS // as the wrapper, which calls it
	}
	for name, entries := range p.Entries {
		if spec.Maps[name] == nil {
			return fmt.Errorf("there is no map %q: it has %s", name, known(spec.Maps))
		}
		spec.Maps[name].MaxEntries = entries
	}
	for name, value := range p.Constants {
		variable := spec.Variables[name]
		if variable == nil {
			return fmt.Errorf("there is no constant %q: it has %s", name, known(spec.Variables))
		}
		if err := variable.Set(value); err != nil {
			return fmt.Errorf("constant %s: %w", name, err)
		}
	}
	return nil
}

// Name is that of the function whose name, or whose only section, the file gives; empty: there is none.
func (f *File) Name(spec *ebpf.CollectionSpec) string {
	if spec.Programs[f.Program] != nil {
		return f.Program
	}
	for name, program := range spec.Programs {
		if program.SectionName == f.Program {
			return name
		}
	}
	return ""
}

func (p *Peer) loaded(name string) (*ebpf.Map, error) {
	if m := p.collection.Maps[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("the object has none of this name: it has %s", known(p.collection.Maps))
}

func (p *Peer) put(fill Fill) error {
	m, err := p.loaded(fill.Map)
	if err != nil {
		return err
	}
	value := any(fill.Value)
	if perCPU(m.Type()) {
		value = slices.Repeat([][]byte{fill.Value}, ebpf.MustPossibleCPU())
	}
	return m.Put(fill.Key, value)
}

// putInner makes a map like the outer map's pattern.
func (p *Peer) putInner(spec *ebpf.CollectionSpec, fill Fill) error {
	m, err := p.loaded(fill.Map)
	if err != nil {
		return err
	}
	pattern := spec.Maps[fill.Map].InnerMap
	if pattern == nil {
		return errors.New("it is no map of maps")
	}
	inner, err := ebpf.NewMap(pattern)
	if err != nil {
		return err
	}
	p.inner = append(p.inner, inner)
	return m.Put(fill.Key, inner)
}

func (p *Peer) putProgram(spec *ebpf.CollectionSpec, call TailCall) error {
	m, err := p.loaded(call.Map)
	if err != nil {
		return err
	}
	return m.Put(call.Key, p.collection.Programs[call.Program])
}

// Loaded is the program.
func (p *Peer) Loaded() *ebpf.Program { return p.program }

// Counted is how many packets the program has counted; 0 if the file names no counter.
func (p *Peer) Counted() (packets uint64, err error) {
	c := p.Counter
	if c == nil {
		return 0, nil
	}
	m, err := p.loaded(c.Map)
	if err != nil {
		return 0, fmt.Errorf("read the counter in map %s: %w", c.Map, err)
	}
	values := make([][]byte, 1)
	if perCPU(m.Type()) {
		err = m.Lookup(c.Key, &values)
	} else {
		err = m.Lookup(c.Key, &values[0])
	}
	if err != nil {
		return 0, fmt.Errorf("read the counter in map %s: %w", c.Map, err)
	}
	for _, value := range values {
		if len(value) < int(c.Offset)+8 {
			return 0, fmt.Errorf("read the counter in map %s: a value has %d bytes: use a smaller offset", c.Map, len(value))
		}
		packets += binary.NativeEndian.Uint64(value[c.Offset:])
	}
	return packets, nil
}

func perCPU(kind ebpf.MapType) bool {
	return kind == ebpf.PerCPUArray || kind == ebpf.PerCPUHash || kind == ebpf.LRUCPUHash
}

// Close unloads the program.
func (p *Peer) Close() error {
	var errs []error
	for _, m := range p.inner {
		errs = append(errs, m.Close())
	}
	if p.collection != nil {
		p.collection.Close()
	}
	return errors.Join(errs...)
}
