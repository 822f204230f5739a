// ballast lb and ballast agent on the nodes of a lab.
package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

const (
	instance       = "default"
	DaemonDeadline = 60 * time.Second // of what takes a second where nothing else runs
)

// Daemon is a ballast process on a node, and what it should be running by.
type Daemon struct {
	*Process
	node, role string
	down       bool // crashed on purpose; stays out of changes until it returns
	Cut        bool // off the controllers; hears of changes when that is over
}

// StartDaemon starts `ballast lb` or `ballast agent` on a node by the node's current configuration file.
func (l *Lab) StartDaemon(role, node string) *Daemon {
	dir := l.NodeDir(node)
	arguments := []string{
		role, "--instance", instance, "--run-dir", filepath.Join(dir, "run"), "--state-dir", filepath.Join(dir, "state"), "--interface", "eth0",
	}
	if role == "lb" && !l.isSecond(node) {
		arguments = append(arguments, "--interface", "eth1")
	}
	arguments = append(arguments, l.controlFlags(role, node)...)
	p := script.Must(l.Start(Spawn{Node: node, Program: l.Binary, Arguments: arguments}))
	return &Daemon{Process: p, node: node, role: role}
}

// controlFlags say what a daemon is told its configuration by, and whom agents tell how busy their servers are.
func (l *Lab) controlFlags(role, node string) []string {
	file := []string{"-f", l.configPath(node)}
	if role == "agent" {
		file = slices.Concat(file, []string{"--server", node}, l.agents, l.agentFlags)
	} else {
		file = append(append(file, l.lbFlags...), l.tierFlags(node)...)
	}
	switch {
	case !l.Topology.Management:
		return file
	case l.Topology.Controllers != 0:
		told := []string{"--tls-dir", l.certificates(), "--name", node}
		if role == "lb" && l.Topology.Relays {
			return append(told, "--controller", relayAddress)
		}
		if role == "agent" { // the scenario shall not end before tunnels are limited
			told = append(told, "--tunnels-settle", "1s")
		}
		return append(told, "--controller", ControlAddresses(ControllerName, l.Topology.Controllers))
	case role == "lb":
		file = append(file, "--listen", fmt.Sprintf(":%d", controlPort))
	default:
		file = append(file, "--controller", ControlAddresses(LBName, l.Topology.LBs))
	}
	return append(file, "--tls-dir", l.certificates(), "--name", node)
}

func (l *Lab) configPath(node string) string { return filepath.Join(l.NodeDir(node), "ballast.yaml") }

// Client speaks to the daemon of a node.
func (l *Lab) Client(node string) *api.Client {
	return api.NewClient(api.SocketPath(filepath.Join(l.NodeDir(node), "run"), instance))
}

// writeConfig replaces a node's configuration by rename, so that no reader sees half of it.
func (l *Lab) writeConfig(node string, content []byte) {
	path := l.configPath(node)
	script.Checkf(os.WriteFile(path+".new", content, 0o644), "write configuration of %s", node)
	script.Check(os.Rename(path+".new", path))
}

// awaitConfig waits until a daemon is ready and runs by the given configuration.
func (l *Lab) awaitConfig(ctx context.Context, d *Daemon, content []byte) {
	sum := sha256.Sum256(content)
	want := hex.EncodeToString(sum[:])
	Await(ctx, DaemonDeadline, d.name+" of "+d.node+" runs by the new configuration", func() error {
		if err := d.Died(); err != nil {
			return StopWaiting(err)
		}
		status, err := l.Client(d.node).Status(ctx)
		switch {
		case err != nil:
			return err
		case status.Config.Error != "":
			return errors.New("it refused the file: " + status.Config.Error)
		case status.Config.SHA256 != want:
			return fmt.Errorf("it still runs by %.8s instead of %.8s", status.Config.SHA256, want)
		case !status.Ready:
			return errors.New("it is not ready")
		}
		d.ready.Store(true)
		return nil
	})
}

// AgentStatus asks the agent of a node how it is.
func (t *Trial) AgentStatus(node string) (status api.AgentStatus, err error) {
	err = t.Client(node).Get(t.Context, api.PathStatus, &status)
	return status, err
}

// awaitTakingPart waits until every LB has found that the servers' clocks allow cookies. Connections that
// come earlier are served without, by the fallback.
func (t *Trial) awaitTakingPart() {
	for node, running := range t.LBs {
		if running.down {
			continue
		}
		Await(t.Context, DaemonDeadline, "the servers take part at "+node, func() error {
			var services []api.ServiceStatus
			if err := t.Client(node).Get(t.Context, api.PathServices, &services); err != nil {
				return err
			}
			for _, server := range services[0].Servers {
				if !server.TakesPart {
					return errors.New(server.Name + " does not")
				}
			}
			return nil
		})
	}
}
