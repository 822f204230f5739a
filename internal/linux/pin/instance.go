// Package pin keeps maps and links of an instance in a BPF file system, where they outlive its process, and finds those of others.
package pin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Instance is where an instance keeps what outlives its process: maps in a folder named for their layout, links beside it, so
// that a program with maps of another layout replaces the one that runs and is not attached beside it. The links are held open as well:
// who removes a pin, or unmounts the file system, ends nothing.
type Instance struct {
	Dir, Layout string
	links       map[string]bool      // that this process has asked for
	held        map[string]link.Link // by pin
	own         map[*ebpf.Map]string // pins of maps that this process's programs alone use
}

// Maps makes the folder of the maps and returns it.
func (p Instance) Maps() (string, error) {
	folder := filepath.Join(p.Dir, p.Layout)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of pinned maps: %w", err)
	}
	return folder, nil
}

// Keep pins maps of another layout of the same role into the folder of this one, those that are not there yet and have the shape that
// spec wants.
func (p Instance) Keep(spec *ebpf.CollectionSpec, names []string) error {
	others, err := p.others()
	if err != nil {
		return err
	}
	for _, name := range names {
		pin := filepath.Join(p.Dir, p.Layout, name)
		for _, folder := range others {
			if _, err := os.Stat(pin); err == nil {
				break
			}
			old, err := ebpf.LoadPinnedMap(filepath.Join(folder, name), nil)
			if err != nil {
				continue // that layout has none
			}
			if spec.Maps[name].Compatible(old) == nil {
				err = pinAgain(old, pin)
			}
			if old.Close(); err != nil {
				return fmt.Errorf("keep map %s of layout %s: %w", name, filepath.Base(folder), err)
			}
		}
	}
	return nil
}

// Room is how many entries a pinned map of this layout has room for, or else that of the newest other one of the same role. 0: there is none.
func (p Instance) Room(name string) (uint32, error) {
	others, err := p.others()
	if err != nil {
		return 0, err
	}
	for _, folder := range append([]string{filepath.Join(p.Dir, p.Layout)}, others...) {
		m, err := ebpf.LoadPinnedMap(filepath.Join(folder, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the room of map %s: %w", name, err)
		}
		return m.MaxEntries(), m.Close()
	}
	return 0, nil
}

// Load opens the maps of spec that are pinned in the folder of this layout, and of those named kept, where it has none, the newest of another layout that has
// the shape that spec wants. spec is given the room that they have. No pin is made; the caller closes them.
func (p Instance) Load(spec *ebpf.CollectionSpec, kept []string) (maps map[string]*ebpf.Map, err error) {
	maps = map[string]*ebpf.Map{}
	defer func() {
		if err != nil {
			for _, m := range maps {
				m.Close()
			}
		}
	}()
	others, err := p.others()
	if err != nil {
		return nil, err
	}
	for name, wanted := range spec.Maps {
		if IsSection(name) {
			continue
		}
		folders := []string{filepath.Join(p.Dir, p.Layout)}
		if slices.Contains(kept, name) {
			folders = append(folders, others...)
		}
		for _, folder := range folders {
			m, err := ebpf.LoadPinnedMap(filepath.Join(folder, name), nil)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return maps, fmt.Errorf("open the pinned map %s: %w", name, err)
			}
			wanted.MaxEntries = m.MaxEntries()
			if filepath.Base(folder) == p.Layout || wanted.Compatible(m) == nil {
				maps[name] = m
				break
			}
			m.Close()
		}
	}
	return maps, nil
}

// pinAgain leaves the first pin where it is: the process that it belongs to may be started once more.
func pinAgain(m *ebpf.Map, pin string) error {
	second, err := m.Clone()
	if err != nil {
		return err
	}
	defer second.Close()
	return second.Pin(pin)
}

// others are the folders of other layouts of the same role ("lb-v1": lb), the newest first.
func (p Instance) others() ([]string, error) {
	role, _, _ := strings.Cut(p.Layout, "-")
	folders, err := filepath.Glob(filepath.Join(p.Dir, role+"-v*"))
	slices.Reverse(folders)
	return slices.DeleteFunc(folders, func(folder string) bool { return filepath.Base(folder) == p.Layout }), err
}

func (p *Instance) link(hook string, ifindex int) string { return LinkPath(p.Dir, hook, ifindex) }

// Ask notes what this process attaches.
func (p *Instance) Ask(hook string, ifindex int) {
	if p.links == nil {
		p.links = map[string]bool{}
	}
	p.links[p.link(hook, ifindex)] = true
}

// Asked reports whether this process has asked for it.
func (p *Instance) Asked(hook string, ifindex int) bool { return p.links[p.link(hook, ifindex)] }

// DropLinks removes the pins of links that this process has not asked for. before is called for each.
func (p *Instance) DropLinks(before func(pin string) error) error {
	for _, pin := range Links(p.Dir, 0) {
		if p.links[pin] {
			continue
		}
		if err := before(pin); err != nil {
			return err
		}
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// DropLayouts removes the maps of other layouts of the same role.
func (p *Instance) DropLayouts() error {
	folders, err := p.others()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := os.RemoveAll(folder); err != nil {
			return fmt.Errorf("remove the maps of another layout: %w", err)
		}
	}
	return nil
}

// LinkOn returns this instance's link on a device, also one that an earlier process pinned; nil: there is none. The pin of a link that
// is on no device any more, or on another, goes.
func (p *Instance) LinkOn(hook string, ifindex int) (link.Link, error) {
	if err := p.letGo(); err != nil {
		return nil, err
	}
	pin := p.link(hook, ifindex)
	if have := p.held[pin]; have != nil {
		if on, _ := LinkIsOn(have); on == ifindex {
			return have, nil
		}
		have.Close()
		delete(p.held, pin)
	}
	old, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take over the link pinned at %s: %w", pin, err)
	}
	if on, _ := LinkIsOn(old); on == ifindex {
		return old, nil
	}
	defer old.Close()
	if err := old.Unpin(); err != nil {
		return nil, fmt.Errorf("remove the pin of a link that is detached: %w", err)
	}
	return nil, nil
}

// Hold keeps a link open, and pins it unless it is. One that cannot be pinned stays as long as the process.
func (p *Instance) Hold(hook string, ifindex int, l link.Link) error {
	pin := p.link(hook, ifindex)
	if have := p.held[pin]; have != nil && have != l {
		have.Close()
	}
	if p.held == nil {
		p.held = map[string]link.Link{}
	}
	p.held[pin] = l
	if _, err := os.Lstat(pin); err == nil || p.passedOn(pin) {
		return nil
	}
	if err := errors.Join(l.Unpin(), l.Pin(pin)); err != nil { // it may believe that it still is pinned
		return fmt.Errorf("pin the %s link on %s: %w", hook, DeviceName(ifindex), err)
	}
	return nil
}

// Replace holds a link in the place of another one of the hook, and pins it there. At no time is neither pinned.
func (p *Instance) Replace(hook string, ifindex int, old, l link.Link) error {
	pin := p.link(hook, ifindex)
	beside := pin + "~" // what is left of it is nobody's: DropLinks
	err := os.Remove(beside)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = l.Pin(beside)
	}
	if err == nil {
		err = os.Rename(beside, pin)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pin the %s link on %s in the place of another: %w", hook, DeviceName(ifindex), err), l.Close())
	}
	if p.held[pin] != old {
		old.Close()
	}
	return p.Hold(hook, ifindex, l)
}

// ownPin is where a map is pinned that program alone uses. Each has its own: that of an earlier process runs on with it until it is replaced.
func ownPin(dir string, program ebpf.ProgramID) string {
	return filepath.Join(dir, "program-"+strconv.Itoa(int(program)))
}

// PinOwn pins a map that program alone uses, before it runs.
func (p *Instance) PinOwn(program *ebpf.Program, m *ebpf.Map) error {
	if p.own[m] != "" {
		return nil
	}
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("read the id of %s: %w", program, err)
	}
	id, _ := info.ID()
	pin := ownPin(p.Dir, id)
	if err := m.Pin(pin); err != nil {
		return fmt.Errorf("pin what %s needs: %w", program, err)
	}
	p.own = map[*ebpf.Map]string{m: pin}
	return nil
}

// DropUnused removes the maps of programs that no link pinned under dir runs.
func DropUnused(dir string) error {
	runs := map[string]bool{}
	for _, pin := range Links(dir, 0) {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return fmt.Errorf("look which program the link pinned at %s runs: %w", pin, err)
		}
		_, program := LinkIsOn(l)
		l.Close()
		runs[ownPin(dir, program)] = true
	}
	pins, err := filepath.Glob(filepath.Join(dir, "program-*"))
	for _, pin := range pins {
		if !runs[pin] {
			err = errors.Join(err, os.Remove(pin))
		}
	}
	return err
}

// There tells whether this instance has a link on a device. One of an earlier process is held from now on.
func (p *Instance) There(hook string, ifindex int) (bool, error) {
	l, err := p.LinkOn(hook, ifindex)
	if err != nil || l == nil {
		return false, err
	}
	return true, p.Hold(hook, ifindex, l)
}

// Adopt holds a link that was pinned by somebody else, unless one is held.
func (p *Instance) Adopt(hook string, ifindex int) error {
	if p.held[p.link(hook, ifindex)] != nil {
		return nil
	}
	_, err := p.There(hook, ifindex)
	return err
}

// Undo detaches what a hook of a device has, if anything.
func (p *Instance) Undo(hook string, ifindex int) (err error) {
	pin := p.link(hook, ifindex)
	if err = os.Remove(pin); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if have := p.held[pin]; have != nil {
		delete(p.held, pin)
		err = errors.Join(err, have.Close())
	}
	return err
}

// Runs is nil if program is what the link of a hook runs on the device, and the link is pinned; else it says why not.
func (p *Instance) Runs(hook string, ifindex int, program *ebpf.Program) error {
	pin := p.link(hook, ifindex)
	have := p.held[pin]
	if have == nil {
		return fmt.Errorf("%s of %s: no program was attached", hook, DeviceName(ifindex))
	}
	if err := LinkRuns(have, hook, ifindex, program); err != nil {
		return err
	}
	if _, err := os.Lstat(pin); err != nil {
		return fmt.Errorf("%s of %s: its link is not pinned: %w", hook, DeviceName(ifindex), err)
	}
	return nil
}

// Forget lets go of the links on a device that is gone.
func (p *Instance) Forget(ifindex int) error {
	for _, pin := range Links(p.Dir, ifindex) {
		if have := p.held[pin]; have != nil {
			have.Close()
			delete(p.held, pin)
		}
		if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the pin of a device that is gone: %w", err)
		}
	}
	return nil
}

// Release closes the links. What is pinned stays attached.
func (p *Instance) Release() (err error) {
	for _, have := range p.held {
		err = errors.Join(err, have.Close())
	}
	p.held = nil
	return err
}

// pinned is a map or a link.
type pinned interface {
	Pin(path string) error
	Unpin() error
}

// Repin pins again those of maps, a struct that bpf2go made, and of the links that are not where they were pinned. missed: there were any.
func (p *Instance) Repin(maps any) (missed bool, err error) {
	lost := map[string]pinned{}
	look := func(path string, what pinned) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) && !p.passedOn(path) {
			lost[path] = what
		}
	}
	fields := reflect.ValueOf(maps).Elem()
	for i := range fields.NumField() {
		m := fields.Field(i).Interface().(*ebpf.Map)
		if pin, own := p.own[m]; own {
			look(pin, m)
		} else if m.IsPinned() {
			look(filepath.Join(p.Dir, p.Layout, fields.Type().Field(i).Tag.Get("ebpf")), m)
		}
	}
	for pin, have := range p.held {
		look(pin, have)
	}
	if len(lost) == 0 {
		return false, nil
	}
	if err = EnsureBPFFS(filepath.Dir(p.Dir)); err == nil {
		_, err = p.Maps()
	}
	for path, what := range lost {
		if err == nil {
			err = errors.Join(what.Unpin(), what.Pin(path)) // it believes that it still is pinned
		}
	}
	if err != nil {
		return true, fmt.Errorf("pin in %s again: %w", p.Dir, err)
	}
	return true, nil
}

// IsSection tells maps of global variables (.bss, .rodata) from ours.
func IsSection(name string) bool { return len(name) > 0 && name[0] == '.' }
