// A fleet that runs by controllers: etcd members, controllers, and the operator who changes it with `ballast ctl apply`.
package world

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/member"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// startControl starts all etcd members and controllers and waits until the controllers answer.
func (t *Trial) startControl() {
	t.Members, t.Controllers = map[string]*Process{}, map[string]*Process{}
	for i := range t.Topology.EtcdMembers {
		t.StartMember(MemberName(i + 1))
	}
	for i := range t.Topology.Controllers {
		t.StartController(ControllerName(i + 1))
	}
	for node := range t.Controllers {
		t.AwaitController(node)
	}
	if t.Topology.Relays {
		t.startRelays()
	}
}

// StartMember starts an etcd member, or starts it again with the data that it has.
func (t *Trial) StartMember(node string) {
	var cluster []string
	for i := range t.Topology.EtcdMembers {
		name := MemberName(i + 1)
		cluster = append(cluster, name+"="+member.PeerURL(manageAddress(name).String()))
	}
	t.Members[node] = t.startPeer(process.Member, Spawn{Node: node}, member.Options{
		Name: node, Dir: filepath.Join(t.NodeDir(node), "etcd"), Address: manageAddress(node).String(), Cluster: strings.Join(cluster, ","),
	})
}

// StartController starts a controller, or starts it again.
func (t *Trial) StartController(node string) {
	var etcd []string
	for i := range t.Topology.EtcdMembers {
		etcd = append(etcd, member.ClientURL(manageAddress(MemberName(i+1)).String()))
	}
	arguments := []string{
		"controller", "--name", node, "--listen", netip.AddrPortFrom(manageAddress(node), controlPort).String(),
		"--etcd", strings.Join(etcd, ","), "--tls-dir", t.certificates(), "--run-dir", filepath.Join(t.NodeDir(node), "run"),
	}
	t.Controllers[node] = script.Must(t.Start(Spawn{Node: node, Program: t.Binary, Arguments: arguments}))
}

// AwaitController waits until a controller listens.
func (t *Trial) AwaitController(node string) {
	t.AwaitPort(t.Context, t.Controllers[node], node, netip.AddrPortFrom(manageAddress(node), controlPort))
	t.Controllers[node].ready.Store(true)
}

// Ctl is what the operator types, and must succeed; the answer is what it prints.
func (t *Trial) Ctl(arguments ...string) (string, error) {
	c, err := t.Operated(ControlAddresses(ControllerName, t.Topology.Controllers), arguments...)
	if err == nil {
		err = c.Wait(t.Context, DaemonDeadline, true)
	}
	if err != nil {
		return "", err
	}
	return c.Said.String(), nil
}

// applyByControl makes the fleet what t.fleet says as an operator would, starts the daemons that do not run yet, and waits until
// all that can know run by it.
func (t *Trial) applyByControl(content []byte) {
	path := t.configPath(operatorNode)
	script.Checkf(os.WriteFile(path, content, 0o644), "write the fleet")
	script.Must(t.Ctl("apply", "--yes", "-f", path))
	for role, daemons := range map[string]map[string]*Daemon{"agent": t.Agents, "lb": t.LBs} {
		for node, running := range daemons {
			if running != nil {
				continue
			}
			daemons[node] = t.StartDaemon(role, node)
		}
	}
	for _, running := range t.Agents {
		t.awaitReady(running)
	}
	for node := range t.LBs {
		t.AwaitFleet(node)
	}
}

func (t *Trial) awaitReady(d *Daemon) {
	Await(t.Context, DaemonDeadline, d.name+" is ready", func() error {
		if err := d.Died(); err != nil {
			return StopWaiting(err)
		}
		status, err := t.Client(d.node).Status(t.Context)
		if err == nil && !status.Ready {
			err = fmt.Errorf("%s is not", d.name)
		}
		d.ready.Store(err == nil)
		return err
	})
}

// AwaitFleet waits until a load balancer has exactly the servers that the fleet has, in their states, and dispatches as it says. One that
// is cut off cannot.
func (t *Trial) AwaitFleet(node string) {
	running := t.LBs[node]
	if running.down || running.Cut {
		return
	}
	t.awaitReady(running)
	Await(t.Context, DaemonDeadline, node+" has the servers of the fleet", func() error { return t.Differs(node) })
}

// Differs tells how the servers of a load balancer and their dispatch differ from those of the fleet.
func (t *Trial) Differs(node string) error {
	var services []api.ServiceStatus
	if err := t.Client(node).Get(t.Context, api.PathServices, &services); err != nil {
		return err
	}
	have, want := map[string]string{}, map[string]string{}
	for _, service := range services {
		have[service.Name] = service.Dispatch.String()
		for _, server := range service.Servers {
			if !server.Removed {
				have[service.Name+"/"+server.Name] = server.State.String()
			}
		}
	}
	for _, service := range t.Fleet.Services {
		want[service.Name] = service.Dispatch.String()
		for _, server := range service.Servers {
			want[service.Name+"/"+server.Name] = server.State.String()
		}
	}
	if !maps.Equal(have, want) {
		return fmt.Errorf("%s has the servers %v instead of %v", node, have, want)
	}
	return nil
}
