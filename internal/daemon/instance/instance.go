// Package instance has the place of a daemon on its host: the pins of its name.
package instance

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Leaves is what the process of a load balancer or an agent leaves when it ends.
const Leaves = "the data path stays attached"

// PinDir is where an instance's links and maps are.
func PinDir(runDir, instance string) string { return filepath.Join(bpffs(runDir), instance) }

func bpffs(runDir string) string { return filepath.Join(runDir, "bpf") }

// Prepare makes the file system of the pins.
func Prepare(runDir string, log *slog.Logger) error {
	if err := pin.EnsureBPFFS(bpffs(runDir)); err != nil {
		return err
	}
	if why := pin.Private(bpffs(runDir)); why != "" {
		log.Warn(why)
	}
	return nil
}

// removes is the command that removes what an instance of a role has pinned.
var removes = map[pki.Role]string{
	pki.LB:    "`ballast lb --detach --instance %s --run-dir %s`",
	pki.Agent: "`ballast agent --detach --instance %s --run-dir %s`",
}

// CheckRole is an error where what an instance has pinned is of another role, and may work on without its daemon: who takes it over, or
// removes it, would end that.
func CheckRole(runDir, instance string, role pki.Role) error {
	dir := PinDir(runDir, instance)
	other := pki.Role(pin.Role(dir))
	if other == "" || other == role {
		return nil
	}
	return fmt.Errorf("what is pinned in %s is of role %s, and works on without its daemon: "+removes[other]+" removes it; or name another --instance",
		dir, other, instance, runDir)
}

// ErrNoInstance: there is nothing to detach.
var ErrNoInstance = errors.New("no such instance")

// Detach removes the data path of an instance of a role whose daemon does not run: packets take the host's ordinary way, and on a server
// connections that carry cookies break. With the last instance the file system of the pins goes. before is called when nothing is in the way, before
// anything is removed; nothing is where it fails.
func Detach(runDir, instance string, role pki.Role, before func(dir string) error) error {
	dir := PinDir(runDir, instance)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("detach %s: %w: nothing is pinned in %s, as this mount namespace shows it", instance, ErrNoInstance, dir)
	}
	if err := CheckRole(runDir, instance, role); err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	listener, err := api.Listen(api.SocketPath(runDir, instance))
	if err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	defer listener.Close()
	if err := attach.FiltersElsewhere(dir); err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	if err := before(dir); err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	if err := errors.Join(attach.Detach(dir), netdev.ReleaseNeighbours()); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(runDir, instance)); err != nil {
		return err
	}
	return pin.RemoveBPFFS(bpffs(runDir))
}
