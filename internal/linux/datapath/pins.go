package datapath

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

// pins are where an instance keeps what outlives its process: maps in a folder named for their layout, links beside it, so
// that a program with maps of another layout replaces the one that runs and is not attached beside it. The links are held open as well:
// who removes a pin, or unmounts the file system, ends nothing.
type pins struct {
	dir, layout string
	links       map[string]bool      // that this process has asked for
	held        map[string]link.Link // by pin
	own         map[*ebpf.Map]string // pins of maps that this process's programs alone use
}

// maps makes the folder of the maps and returns it.
func (p pins) maps() (string, error) {
	folder := filepath.Join(p.dir, p.layout)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of pinned maps: %w", err)
	}
	return folder, nil
}

// keep pins maps of another layout of the same role into the folder of this one, those that are not there yet and have the shape that
// spec wants.
func (p pins) keep(spec *ebpf.CollectionSpec, names []string) error {
	others, err := p.others()
	if err != nil {
		return err
	}
	for _, name := range names {
		pin := filepath.Join(p.dir, p.layout, name)
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
func (p pins) others() ([]string, error) {
	role, _, _ := strings.Cut(p.layout, "-")
	folders, err := filepath.Glob(filepath.Join(p.dir, role+"-v*"))
	slices.Reverse(folders)
	return slices.DeleteFunc(folders, func(folder string) bool { return filepath.Base(folder) == p.layout }), err
}

func (p *pins) link(hook string, ifindex int) string {
	return filepath.Join(p.dir, "link-"+hook+"-"+strconv.Itoa(ifindex))
}

// ask notes what this process has attached.
func (p *pins) ask(link string) {
	if p.links == nil {
		p.links = map[string]bool{}
	}
	p.links[link] = true
}

// linkOn returns this instance's link on a device, also one that an earlier process pinned; nil: there is none. The pin of a link that
// is on no device any more, or on another, goes.
func (p *pins) linkOn(hook string, ifindex int) (link.Link, error) {
	pin := p.link(hook, ifindex)
	if have := p.held[pin]; have != nil {
		if on, _ := linkIsOn(have); on == ifindex {
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
	if on, _ := linkIsOn(old); on == ifindex {
		return old, nil
	}
	defer old.Close()
	if err := old.Unpin(); err != nil {
		return nil, fmt.Errorf("remove the pin of a link that is detached: %w", err)
	}
	return nil, nil
}

// linkIsOn returns the device that a link's program runs on, 0: none, and the program.
func linkIsOn(l link.Link) (ifindex int, program ebpf.ProgramID) {
	info, err := l.Info()
	switch {
	case err != nil:
		return 0, 0
	case info.XDP() != nil:
		return int(info.XDP().Ifindex), info.Program
	case info.TCX() != nil:
		return int(info.TCX().Ifindex), info.Program
	}
	return 0, 0
}

// hold keeps a link open, and pins it unless it is. One that cannot be pinned stays as long as the process.
func (p *pins) hold(hook string, ifindex int, l link.Link) error {
	pin := p.link(hook, ifindex)
	if have := p.held[pin]; have != nil && have != l {
		have.Close()
	}
	if p.held == nil {
		p.held = map[string]link.Link{}
	}
	p.held[pin] = l
	if _, err := os.Lstat(pin); err == nil {
		return nil
	}
	if err := errors.Join(l.Unpin(), l.Pin(pin)); err != nil { // it may believe that it still is pinned
		return fmt.Errorf("pin the %s link on %s: %w", hook, deviceName(ifindex), err)
	}
	return nil
}

// ownPin is where a map is pinned that program alone uses. Each has its own: that of an earlier process runs on with it until it is replaced.
func ownPin(dir string, program ebpf.ProgramID) string {
	return filepath.Join(dir, "program-"+strconv.Itoa(int(program)))
}

// pinOwn pins a map that program alone uses, before it runs.
func (p *pins) pinOwn(program *ebpf.Program, m *ebpf.Map) error {
	if p.own[m] != "" {
		return nil
	}
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("read the id of %s: %w", program, err)
	}
	id, _ := info.ID()
	pin := ownPin(p.dir, id)
	if err := m.Pin(pin); err != nil {
		return fmt.Errorf("pin what %s needs: %w", program, err)
	}
	p.own = map[*ebpf.Map]string{m: pin}
	return nil
}

// dropUnused removes the maps of programs that no link pinned under dir runs.
func dropUnused(dir string) error {
	runs := map[string]bool{}
	for _, pin := range linkPins(dir, 0) {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return fmt.Errorf("look which program the link pinned at %s runs: %w", pin, err)
		}
		_, program := linkIsOn(l)
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

// there tells whether this instance has a link on a device. One of an earlier process is held from now on.
func (p *pins) there(hook string, ifindex int) (bool, error) {
	l, err := p.linkOn(hook, ifindex)
	if err != nil || l == nil {
		return false, err
	}
	return true, p.hold(hook, ifindex, l)
}

// undo detaches what a hook of a device has, if anything.
func (p *pins) undo(hook string, ifindex int) (err error) {
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

// runs is nil if program is what the link of a hook runs on the device, and the link is pinned; else it says why not.
func (p *pins) runs(hook string, ifindex int, program *ebpf.Program) error {
	pin := p.link(hook, ifindex)
	have := p.held[pin]
	if have == nil {
		return fmt.Errorf("%s of %s: no program was attached", hook, deviceName(ifindex))
	}
	if err := linkRuns(have, hook, ifindex, program); err != nil {
		return err
	}
	if _, err := os.Lstat(pin); err != nil {
		return fmt.Errorf("%s of %s: its link is not pinned: %w", hook, deviceName(ifindex), err)
	}
	return nil
}

// forget lets go of the links on a device that is gone.
func (p *pins) forget(ifindex int) error {
	for _, pin := range linkPins(p.dir, ifindex) {
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

// release closes the links. What is pinned stays attached.
func (p *pins) release() (err error) {
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

// repin pins again those of maps, a struct that bpf2go made, and of the links that are not where they were pinned. missed: there were any.
func (p *pins) repin(maps any) (missed bool, err error) {
	lost := map[string]pinned{}
	look := func(path string, what pinned) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			lost[path] = what
		}
	}
	fields := reflect.ValueOf(maps).Elem()
	for i := range fields.NumField() {
		m := fields.Field(i).Interface().(*ebpf.Map)
		if pin, own := p.own[m]; own {
			look(pin, m)
		} else if m.IsPinned() {
			look(filepath.Join(p.dir, p.layout, fields.Type().Field(i).Tag.Get("ebpf")), m)
		}
	}
	for pin, have := range p.held {
		look(pin, have)
	}
	if len(lost) == 0 {
		return false, nil
	}
	if err = EnsureBPFFS(filepath.Dir(p.dir)); err == nil {
		_, err = p.maps()
	}
	for path, what := range lost {
		if err == nil {
			err = errors.Join(what.Unpin(), what.Pin(path)) // it believes that it still is pinned
		}
	}
	if err != nil {
		return true, fmt.Errorf("pin in %s again: %w", p.dir, err)
	}
	return true, nil
}

// dropOthers removes what only an earlier process had: links on devices that this one was not told of, maps of its programs, and maps of
// other layouts of the same role ("lb-v1": lb). Call it when every device has been attached to.
func (p *pins) dropOthers() error {
	if p.dir == "" {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(p.dir, "link-*"))
	if err != nil {
		return err
	}
	for _, pin := range links {
		if p.links[pin] {
			continue
		}
		if err := os.Remove(pin); err != nil {
			return fmt.Errorf("detach from a device that is not named any more: %w", err)
		}
	}
	if err := sweepFilters(p.dir, func(at tcPlace) bool { return p.links[p.link(at.hook.name, at.ifindex)] }); err != nil {
		return fmt.Errorf("detach from a device that is not named any more: %w", err)
	}
	if err := dropUnused(p.dir); err != nil {
		return fmt.Errorf("remove what an earlier program needed: %w", err)
	}
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

// BeforeStart looks at what is pinned under dir. undo removes what has been pinned since: what a start that fails has attached, and, if
// it took nothing over, its maps.
func BeforeStart(dir string) (undo func() error, err error) {
	look := func() (pins []string, err error) {
		for _, pattern := range []string{"link-*", "*-v*"} { // links first: no program runs on maps that are gone
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, err
			}
			pins = append(pins, found...)
		}
		return pins, nil
	}
	before, err := look()
	if err != nil {
		return nil, err
	}
	filters, err := ownFilters(dir)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := sweepFilters(dir, func(at tcPlace) bool { return filters[at] }); err != nil {
			return fmt.Errorf("undo the start: %w", err)
		}
		after, err := look()
		if err != nil {
			return err
		}
		isLink := func(pin string) bool { return strings.HasPrefix(filepath.Base(pin), "link-") }
		tookOver := slices.ContainsFunc(before, isLink)
		for _, pin := range after {
			if slices.Contains(before, pin) || (tookOver && !isLink(pin)) {
				continue
			}
			if err := os.RemoveAll(pin); err != nil {
				return fmt.Errorf("undo the start: %w", err)
			}
		}
		return dropUnused(dir)
	}, nil
}

// Detach removes links, filters and maps of any role and layout that an instance has left under dir; filters in the calling thread's
// network namespace. Nothing there is no error.
func Detach(dir string) error {
	if err := sweepFilters(dir, nothing); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the pins in %s: %w", dir, err)
	}
	return nil
}
