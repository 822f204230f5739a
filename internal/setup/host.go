// Package setup makes a machine a controller or a node: its certificate, the options of its unit, and its start.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
)

// Host is the machine, as far as setting it up changes it.
type Host struct {
	TLSDir   string // certificates
	Defaults string // directory of the units' options
	RunDir   string // sockets
	// Systemd starts a unit now and at boot; nil: it starts none.
	Systemd func(ctx context.Context, unit string) error
	Out     io.Writer     // for people
	Wait    time.Duration // for a daemon to be ready
}

// Systemd is systemctl, where systemd runs.
func Systemd() func(ctx context.Context, unit string) error {
	if info, err := os.Stat("/run/systemd/system"); err != nil || !info.IsDir() {
		return nil
	}
	return func(ctx context.Context, unit string) error {
		output, err := exec.CommandContext(ctx, "systemctl", "enable", "--now", unit).CombinedOutput()
		if err != nil {
			return fmt.Errorf("start %s: %w: %s: see `systemctl status %s` and `journalctl -u %s`", unit, err, strings.TrimSpace(string(output)), unit, unit)
		}
		return nil
	}
}

// StopUnit ends a unit, now and at boot, where systemd runs; one that is not known is no error.
func StopUnit() func(ctx context.Context, unit string) error {
	if Systemd() == nil {
		return nil
	}
	return func(ctx context.Context, unit string) error {
		if err := exec.CommandContext(ctx, "systemctl", "cat", unit).Run(); err != nil {
			return nil
		}
		if output, err := exec.CommandContext(ctx, "systemctl", "disable", "--now", unit).CombinedOutput(); err != nil {
			return fmt.Errorf("stop %s: %w: %s", unit, err, strings.TrimSpace(string(output)))
		}
		return nil
	}
}

func (h *Host) say(format string, values ...any) { fmt.Fprintf(h.Out, format+"\n", values...) }

func (h *Host) defaults(unit string) string { return filepath.Join(h.Defaults, unit) }

// absent refuses what is there: nothing is overwritten.
func absent(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s is there already: nothing was changed", path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// create writes a file that is not there yet.
func create(path, content string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
}

// writable reports as an error that files cannot be made in a directory, which is made if it is not there.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// standing is what every daemon of a node answers.
type standing struct {
	api.Status
	Controllers []string `json:"controllers"`
}

// await looks at the daemon of an instance until it is as wanted, and returns how it was last.
func (h *Host) await(ctx context.Context, instance string, wait time.Duration, wanted func(*standing) bool) (last *standing, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	client := api.NewClient(api.SocketPath(h.RunDir, instance))
	for look := time.NewTicker(lookEvery); ; {
		next := &standing{}
		if err = client.Get(ctx, api.PathStatus, next); err == nil {
			if last = next; wanted(last) {
				return last, nil
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			look.Stop()
			if last != nil {
				return last, nil
			}
			return nil, err
		}
	}
}

const lookEvery = 100 * time.Millisecond

// towards is the address that this machine reaches another from; no packet is sent.
func towards(endpoint string) (netip.Addr, error) {
	connection, err := net.Dial("udp", endpoint)
	if err != nil {
		return netip.Addr{}, err
	}
	defer connection.Close()
	own, err := netip.ParseAddrPort(connection.LocalAddr().String())
	return own.Addr().Unmap().WithZone(""), err
}

// hostname is the machine's, without its domain.
func hostname() (string, error) {
	name, err := os.Hostname()
	short, _, _ := strings.Cut(name, ".")
	if err == nil && short == "" {
		err = errors.New("the machine has no name")
	}
	if err != nil {
		return "", fmt.Errorf("find the name of this machine: %w: say --name", err)
	}
	return short, nil
}
