// A fleet that runs by controllers: etcd members, controllers, and the operator who changes it with `ballast ctl apply`.
package lab

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/member"
)

// startControl starts all etcd members and controllers and waits until the controllers answer.
func (t *trial) startControl() error {
	t.members, t.controllers = map[string]*Process{}, map[string]*Process{}
	for i := range t.topo.EtcdMembers {
		if err := t.startMember(memberName(i + 1)); err != nil {
			return err
		}
	}
	for i := range t.topo.Controllers {
		if err := t.startController(controllerName(i + 1)); err != nil {
			return err
		}
	}
	for node := range t.controllers {
		if err := t.awaitController(node); err != nil {
			return err
		}
	}
	if t.topo.Relays {
		return t.startRelays()
	}
	return nil
}

// startMember starts an etcd member, or starts it again with the data that it has.
func (t *trial) startMember(node string) error {
	var cluster []string
	for i := range t.topo.EtcdMembers {
		name := memberName(i + 1)
		cluster = append(cluster, name+"="+member.PeerURL(manageAddress(name).String()))
	}
	options, err := json.Marshal(member.Options{
		Name: node, Dir: filepath.Join(t.nodeDir(node), "etcd"), Address: manageAddress(node).String(), Cluster: strings.Join(cluster, ","),
	})
	if err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	t.members[node], err = t.start(spawn{node: node, program: t.Processes, arguments: []string{process.Member, string(options)}})
	return err
}

func (t *trial) startController(node string) (err error) {
	var etcd []string
	for i := range t.topo.EtcdMembers {
		etcd = append(etcd, member.ClientURL(manageAddress(memberName(i+1)).String()))
	}
	arguments := []string{
		"controller", "--name", node, "--listen", netip.AddrPortFrom(manageAddress(node), controlPort).String(),
		"--etcd", strings.Join(etcd, ","), "--tls-dir", t.certificates(), "--run-dir", filepath.Join(t.nodeDir(node), "run"),
	}
	t.controllers[node], err = t.start(spawn{node: node, program: t.Binary, arguments: arguments})
	return err
}

func (t *trial) awaitController(node string) error {
	err := t.awaitPort(t.ctx, t.controllers[node], node, netip.AddrPortFrom(manageAddress(node), controlPort))
	t.controllers[node].ready.Store(err == nil)
	return err
}

// ctl is what the operator types, and must succeed; the answer is what it prints.
func (t *trial) ctl(arguments ...string) (string, error) {
	c, err := t.operated(controlAddresses(controllerName, t.topo.Controllers), arguments...)
	if err == nil {
		err = c.wait(t.ctx, daemonDeadline, true)
	}
	if err != nil {
		return "", err
	}
	return c.said.String(), nil
}

// applyByControl makes the fleet what t.fleet says as an operator would, starts the daemons that do not run yet, and waits until
// all that can know run by it.
func (t *trial) applyByControl(content []byte) error {
	path := t.configPath(operatorNode)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("write the fleet: %w", err)
	}
	if _, err := t.ctl("apply", "--yes", "-f", path); err != nil {
		return err
	}
	for role, daemons := range map[string]map[string]*daemon{"agent": t.agents, "lb": t.lbs} {
		for node, running := range daemons {
			if running != nil {
				continue
			}
			var err error
			if daemons[node], err = t.startDaemon(role, node); err != nil {
				return err
			}
		}
	}
	for _, running := range t.agents {
		if err := t.awaitReady(running); err != nil {
			return err
		}
	}
	for node := range t.lbs {
		if err := t.awaitFleet(node); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) awaitReady(d *daemon) error {
	return await(t.ctx, daemonDeadline, d.name+" is ready", func() error {
		if err := d.died(); err != nil {
			return stopWaiting(err)
		}
		status, err := t.client(d.node).Status(t.ctx)
		if err == nil && !status.Ready {
			err = fmt.Errorf("%s is not", d.name)
		}
		d.ready.Store(err == nil)
		return err
	})
}

// awaitFleet waits until a load balancer has exactly the servers that the fleet has, in their states, and dispatches as it says. One that
// is cut off cannot.
func (t *trial) awaitFleet(node string) error {
	running := t.lbs[node]
	if running.down || running.cut {
		return nil
	}
	if err := t.awaitReady(running); err != nil {
		return err
	}
	return await(t.ctx, daemonDeadline, node+" has the servers of the fleet", func() error { return t.differs(node) })
}

// differs tells how the servers of a load balancer and their dispatch differ from those of the fleet.
func (t *trial) differs(node string) error {
	var services []api.ServiceStatus
	if err := t.client(node).Get(t.ctx, api.PathServices, &services); err != nil {
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
	for _, service := range t.fleet.Services {
		want[service.Name] = service.Dispatch
		for _, server := range service.Servers {
			want[service.Name+"/"+server.Name] = "active"
			if server.State != "" {
				want[service.Name+"/"+server.Name] = server.State
			}
		}
	}
	if !maps.Equal(have, want) {
		return fmt.Errorf("%s has the servers %v instead of %v", node, have, want)
	}
	return nil
}
