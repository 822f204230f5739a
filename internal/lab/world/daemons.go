// ballast lb and ballast agent on the nodes of a lab.
package world

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

const (
	instance = "default"
	// secondInstance is the agent of a host that is a load balancer, too.
	secondInstance = "agent"
	controlPort    = 6443
	metricsPort    = 9435 // of load balancers of the second tier: what the first asks whether they live
)

// Daemon is a ballast process on a node.
type Daemon struct {
	*host.Process
	down bool // crashed on purpose; stays out of changes until it returns
	Cut  bool // off the controllers; hears of changes when that is over
}

// Daemons are those of a fleet by node; nil: they are to be started.
type Daemons struct {
	lab                 *host.Lab
	network             *Network
	LBs, Second, Agents map[string]*Daemon
	lbFlags, agentFlags []string // beyond the lab's own
}

// Start starts `ballast lb` or `ballast agent` on a node by the node's current configuration file, or by controllers.
func (d *Daemons) Start(role, node string) *Daemon {
	arguments := append([]string{role, "--interface", "eth0"}, d.directories(node)...)
	if role == "lb" && !isSecond(node) || d.network.home(node) != node {
		arguments = append(arguments, "--interface", "eth1")
	}
	arguments = append(arguments, d.controlFlags(role, node)...)
	return &Daemon{Process: script.Must(d.lab.Start(host.Spawn{Node: node, Program: d.lab.Binary, Arguments: arguments}))}
}

// directories are the flags of all daemons of a node.
func (d *Daemons) directories(node string) []string {
	return []string{"--instance", d.instance(node), "--run-dir", d.runDir(node), "--state-dir", filepath.Join(d.lab.NodeDir(node), "state")}
}

// runDir is that of all daemons of a host.
func (d *Daemons) runDir(node string) string {
	return filepath.Join(d.lab.NodeDir(d.network.home(node)), "run")
}

func (d *Daemons) instance(node string) string {
	if d.network.home(node) != node {
		return secondInstance
	}
	return instance
}

// controlFlags name the source of a daemon's configuration, and to whom agents report load.
func (d *Daemons) controlFlags(role, node string) []string {
	file := []string{"-f", d.configPath(node)}
	if role == "agent" {
		file = slices.Concat(file, []string{"--server", node}, d.agentFlags)
	} else {
		file = slices.Concat(file, d.lbFlags, d.tierFlags(node))
	}
	secured := []string{"--tls-dir", certificates(d.lab), "--name", node}
	switch {
	case !d.network.Management:
		return file
	case d.network.Controllers != 0:
		if role == "lb" && d.network.Relays {
			return append(secured, "--controller", relayAddress)
		}
		if role == "agent" { // the scenario shall not end before tunnels are limited
			secured = append(append(secured, "--tunnels-settle", "1s"), d.agentFlags...)
		}
		return append(secured, "--controller", ControlAddresses(ControllerName, d.network.Controllers))
	case role == "lb":
		file = append(file, "--listen", fmt.Sprintf(":%d", controlPort))
	default:
		file = append(file, "--controller", ControlAddresses(LBName, d.network.LBs))
	}
	return append(file, secured...)
}

// tierFlags name a load balancer, if nodes have names, and let others see whether it lives.
func (d *Daemons) tierFlags(node string) []string {
	if d.network.Second == 0 && d.network.Routing.Daemon == "" && !d.network.Segment || d.network.Management {
		return nil
	}
	flags := []string{"--name", node}
	if isSecond(node) {
		flags = append(flags, "--metrics", fmt.Sprintf(":%d", metricsPort))
	}
	return flags
}

func (d *Daemons) configPath(node string) string {
	return filepath.Join(d.lab.NodeDir(node), "ballast.yaml")
}

// Client returns a client of the daemon of a node.
func (d *Daemons) Client(node string) *api.Client {
	return api.NewClient(api.SocketPath(d.runDir(node), d.instance(node)))
}

// ticketFile is the file of an agent by which applications of a service make tickets; idsFile that of connection ids.
func ticketFile(lab *host.Lab, node, service string) string {
	return filepath.Join(lab.NodeDir(node), "run", "tickets", instance, service+".json")
}

func idsFile(lab *host.Lab, node, service string) string {
	return filepath.Join(lab.NodeDir(node), "run", "quic", instance, service+".json")
}
