// Load balancers that fail and return.
package world

import (
	"errors"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Failures take load balancers down and bring them back.
type Failures struct {
	network *Network
	rollout *Rollout
	servers *Servers
}

// CrashLB ends a load balancer as a power cut would.
func (f *Failures) CrashLB(i int) { f.Crash(f.rollout.LBs[LBName(i)], "eth0", "eth1") }

// PowerOff ends host i, which is a load balancer and a server.
func (f *Failures) PowerOff(i int) {
	f.Crash(f.rollout.Agents[ServerName(i)], "eth0", "eth1") // links first: nobody is told
	f.servers.Kill(i)
	f.CrashLB(i)
}

// PowerOn boots it.
func (f *Failures) PowerOn(i int) {
	f.servers.Restart(i)
	f.rollout.Agents[ServerName(i)] = nil
	f.ReturnLB(i)
}

// Crash cuts a node off its links and kills its daemon; what it had in memory is gone.
func (f *Failures) Crash(what *Daemon, links ...string) {
	var errs []error
	for _, link := range links {
		errs = append(errs, f.network.lab.Space(what.Node).SetLink(link, false))
	}
	what.Kill()
	what.down = true
	script.Check(errors.Join(append(errs, f.removePins(what.Node))...))
}

func (f *Failures) removePins(node string) error {
	_, err := host.RemovePins(f.network.lab.NodeDir(node))
	return err
}

// ReturnLB boots a crashed load balancer: it takes traffic when it is ready, not before.
func (f *Failures) ReturnLB(i int) {
	node := LBName(i)
	script.Check(f.network.lab.Space(node).SetLink("eth1", true))
	f.rollout.LBs[node] = nil
	f.network.routes.routeToFarServers(node)
	f.rollout.Apply()
	script.Check(f.network.lab.Space(node).SetLink("eth0", true))
	f.network.routes.routeUp(i)
}

// ReturnSecond boots a crashed load balancer of the second tier: the first sees by itself that it lives.
func (f *Failures) ReturnSecond(i int) {
	node := SecondName(i)
	f.rollout.Second[node] = nil
	script.Check(f.network.lab.Space(node).SetLink("eth0", true))
	f.network.routes.routeSecondOut(node)
	f.rollout.Apply()
}

// CutLB takes the links of a load balancer down that is not ours; RejoinLB brings them up.
func (f *Failures) CutLB(i int) { f.setLinks(LBName(i), false, "eth0", "eth1") }

// RejoinLB brings the links of a load balancer up, with their routes.
func (f *Failures) RejoinLB(i int) {
	f.setLinks(LBName(i), true, "eth1", "eth0")
	f.network.routes.routeToFarServers(LBName(i))
	f.network.routes.routeUp(i)
}

// CutServer ends server i as a power cut would, its agent too if it has one.
func (f *Failures) CutServer(i int) {
	f.setLinks(ServerName(i), false, "eth0")
	f.servers.Kill(i)
	if agent := f.rollout.Agents[ServerName(i)]; agent != nil {
		f.Crash(agent)
	}
}

// RebootServer boots server i.
func (f *Failures) RebootServer(i int) {
	f.setLinks(ServerName(i), true, "eth0")
	f.network.routes.answerBy(i, fabricGateway)
	f.servers.Restart(i)
	if f.rollout.Agents[ServerName(i)] != nil {
		f.rollout.Agents[ServerName(i)] = nil
		f.rollout.Apply()
	}
}

func (f *Failures) setLinks(node string, up bool, links ...string) {
	for _, link := range links {
		script.Check(f.network.lab.Space(node).SetLink(link, up))
	}
}

// Die is what a load balancer does whose machine has gone. What it had in memory is gone.
func (f *Failures) Die(i int) {
	node := f.rollout.LBs[LBName(i)]
	f.network.Silence(i, true)
	node.Kill()
	node.down = true
}

// Reborn starts a load balancer that has died, with nothing but its files.
func (f *Failures) Reborn(i int) {
	name := LBName(i)
	script.Check(f.removePins(name))
	f.rollout.LBs[name] = nil
	f.rollout.Apply()
	f.network.Silence(i, false)
}

// DetachLB removes the data path of a load balancer, whose daemon has ended.
func (f *Failures) DetachLB(i int) {
	node := LBName(i)
	script.Must(f.network.lab.Start(host.Spawn{Node: node, Program: f.network.lab.Binary,
		Arguments: append([]string{"lb", "--detach"}, f.rollout.directories(node)...)})).Finish()
}
