package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// containerVariable has the container that this program becomes, in JSON.
const containerVariable = "BALLAST_TEST_CONTAINER"

// A container is what a runtime makes of one: mounts, a user, and exactly the capabilities that are named.
type container struct {
	Root         string   `json:"root"` // directory of its files
	Mounts       []volume `json:"mounts"`
	ReadOnly     bool     `json:"read_only"` // its root
	UID          int      `json:"uid"`
	GID          int      `json:"gid"`
	Capabilities []string `json:"capabilities"` // without CAP_
	Command      []string `json:"command"`
	Environment  []string `json:"environment"`
}

type volume struct {
	From     string `json:"from"`
	To       string `json:"to"`
	ReadOnly bool   `json:"read_only"`
}

// capabilities are those that pods of ours may ask for.
var capabilities = map[string]uint{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "PERFMON": unix.CAP_PERFMON, "BPF": unix.CAP_BPF,
}

// runContainer becomes a container that is given in JSON.
func runContainer(text string) {
	runtime.LockOSThread() // namespaces and capabilities are a thread's
	var c container
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.become()
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(125)
}

// become does what runc does: it is called in mount and process namespaces of its own.
func (c *container) become() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(c.Root, c.Root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, of := range []struct{ kind, at string }{{"proc", "proc"}, {"sysfs", "sys"}, {"tmpfs", "tmp"}} {
		if err := unix.Mount(of.kind, filepath.Join(c.Root, of.at), of.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", of.kind, err)
		}
	}
	for _, v := range c.Mounts {
		if err := c.bind(v); err != nil {
			return fmt.Errorf("mount %s at %s: %w", v.From, v.To, err)
		}
	}
	// Runtimes let only privileged containers write these.
	for _, path := range []string{"/proc/sys", "/sys"} {
		if err := c.bind(volume{filepath.Join(c.Root, path), path, true}); err != nil {
			return fmt.Errorf("protect %s: %w", path, err)
		}
	}
	if c.ReadOnly {
		if err := unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	if err := unix.Chroot(c.Root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := c.drop(); err != nil {
		return err
	}
	return unix.Exec(c.Command[0], c.Command, c.Environment)
}

func (c *container) bind(v volume) error {
	to := filepath.Join(c.Root, v.To)
	if err := unix.Mount(v.From, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !v.ReadOnly {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// drop leaves a user and its capabilities.
func (c *container) drop() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	var bits [2]uint32
	for _, name := range c.Capabilities {
		bit, known := capabilities[name]
		if !known {
			return fmt.Errorf("no pod of ours has capability %s", name)
		}
		bits[bit/32] |= 1 << (bit % 32)
	}
	for bit := uint(0); bit <= unix.CAP_LAST_CAP; bit++ {
		if bits[bit/32]&(1<<(bit%32)) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil && err != unix.EINVAL { // one that this kernel does not have
				return err
			}
		}
	}
	for _, set := range []func() error{
		func() error { return unix.Setgroups([]int{c.GID}) },
		func() error { return unix.Setresgid(c.GID, c.GID, c.GID) },
		func() error { return unix.Setresuid(c.UID, c.UID, c.UID) },
	} {
		if err := set(); err != nil {
			return err
		}
	}
	if c.UID != 0 { // it lost them by the change
		return nil
	}
	data := [2]unix.CapUserData{}
	for i := range data {
		data[i] = unix.CapUserData{Effective: bits[i], Permitted: bits[i], Inheritable: bits[i]}
	}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
}

// programOf is the program that an image of ours runs.
func programOf(image string) string {
	name, _, _ := strings.Cut(filepath.Base(image), ":")
	return name
}
