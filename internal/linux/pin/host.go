// What instances of one network namespace share.
package pin

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// HookXDP is what pins call the hook of XDP programs.
const HookXDP = "xdp"

// HostPrefix begins the names of the directories, beside those of instances, that instances of a network namespace share. No instance's name
// has the character.
const HostPrefix = "host~"

// LinkPath is where an instance pins the link of a hook.
func LinkPath(dir, hook string, ifindex int) string {
	return filepath.Join(dir, "link-"+hook+"-"+strconv.Itoa(ifindex))
}

// Claim is where the program of an agent is pinned that runs behind a load balancer's on a device.
func Claim(host string, ifindex int, instance string) string {
	return filepath.Join(host, "behind-"+strconv.Itoa(ifindex)+"-"+instance)
}

// A Claimed device is one that an instance's program runs on behind another's.
type Claimed struct {
	Host, Path, Instance string
	Ifindex              int
}

// Claims are those of an instance.
func Claims(dir string) (found []Claimed) {
	root, instance := filepath.Split(filepath.Clean(dir))
	hosts, _ := filepath.Glob(filepath.Join(root, HostPrefix+"*"))
	for _, host := range hosts {
		found = append(found, slices.DeleteFunc(ClaimsIn(host), func(c Claimed) bool { return c.Instance != instance })...)
	}
	return found
}

// ClaimsIn are those of all instances of a network namespace.
func ClaimsIn(host string) (found []Claimed) {
	pins, _ := filepath.Glob(filepath.Join(host, "behind-*"))
	for _, path := range pins {
		device, instance, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "behind-"), "-")
		if ifindex, err := strconv.Atoi(device); err == nil {
			found = append(found, Claimed{Host: host, Path: path, Instance: instance, Ifindex: ifindex})
		}
	}
	return found
}

// letGo closes the links that a load balancer has taken over, whose pins are its own now. Their devices are claimed before.
func (p *Instance) letGo() (err error) {
	for pin, have := range p.held {
		if p.passedOn(pin) {
			delete(p.held, pin)
			err = errors.Join(err, have.Close())
		}
	}
	return err
}

// passedOn reports whether the link that was pinned there is pinned by a load balancer now.
func (p *Instance) passedOn(pin string) bool {
	if _, err := os.Lstat(pin); !errors.Is(err, os.ErrNotExist) {
		return false
	}
	return slices.ContainsFunc(Claims(p.Dir), func(c Claimed) bool { return pin == p.link(HookXDP, c.Ifindex) })
}
