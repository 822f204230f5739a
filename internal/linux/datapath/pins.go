package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pins are where an instance keeps what outlives its process: maps in a folder named for their layout, links beside it, so
// that a program with maps of another layout replaces the one that runs and is not attached beside it.
type pins struct {
	dir, layout string
	links       map[string]bool // that this process has asked for
}

// maps makes the folder of the maps and returns it.
func (p pins) maps() (string, error) {
	folder := filepath.Join(p.dir, p.layout)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of pinned maps: %w", err)
	}
	return folder, nil
}

func (p *pins) link(hook string, ifindex int) string {
	pin := filepath.Join(p.dir, "link-"+hook+"-"+strconv.Itoa(ifindex))
	if p.links == nil {
		p.links = map[string]bool{}
	}
	p.links[pin] = true
	return pin
}

// dropOthers removes what only an earlier process had: links on devices that this one was not told of, and maps of other layouts of
// the same role ("lb-v1": lb). Call it when every device has been attached to.
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
	role, _, _ := strings.Cut(p.layout, "-")
	folders, err := filepath.Glob(filepath.Join(p.dir, role+"-v*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if filepath.Base(folder) == p.layout {
			continue
		}
		if err := os.RemoveAll(folder); err != nil {
			return fmt.Errorf("remove the maps of another layout: %w", err)
		}
	}
	return nil
}

// Detach removes links and maps that are pinned under dir, of any role and layout. Nothing there is no error.
func Detach(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the pins in %s: %w", dir, err)
	}
	return nil
}
