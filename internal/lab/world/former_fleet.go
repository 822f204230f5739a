package world

import (
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// FormerFleet is another Ballast, with keys and servers of its own.
type FormerFleet struct {
	*Former
	*fleet.Fleet
	nodes map[string]*Daemon
}

// StartFormerFleet has it serve the same services by the servers from first on, which are not of the trial's fleet. Their ids begin with 1,
// as those of the others do.
func (t *Trial) StartFormerFleet(first int) *FormerFleet {
	f := &FormerFleet{Former: &Former{t: t}, nodes: map[string]*Daemon{}}
	var services []*fleet.Service
	for _, one := range t.Fleet.Services {
		theirs := &fleet.Service{Service: one.Clone(), CrossFamily: one.CrossFamily}
		theirs.Servers = nil
		for i := first; i <= len(t.Network.Servers); i++ {
			theirs.Add(ServerName(i), i-first+1, t.Network.ServerAddress(i, one.VIP.Is6() != one.CrossFamily), 0)
		}
		services = append(services, theirs)
	}
	f.Fleet = fleet.New(t.Random, services...)
	lb := LBName(f.Number())
	f.Begun = func(one *fleet.Service) (int, error) { return t.Monitor.Begun(one.Name, lb) }
	f.Open = func(held *Load) (open int, err error) {
		now := held.Now()
		for i := first; i <= len(t.Network.Servers); i++ {
			open += now.OpenByServer[ServerName(i)]
		}
		return open, nil
	}
	for i := first; i <= len(t.Network.Servers); i++ {
		f.nodes[ServerName(i)] = nil
	}
	f.Apply()
	f.nodes[lb] = nil
	f.Apply()
	return f
}

// Apply writes its file to its nodes, starts those that do not run, and waits until all run by it.
func (f *FormerFleet) Apply() {
	rollout, content := f.t.Rollout, script.Must(f.Encode())
	for node, running := range f.nodes {
		rollout.writeConfig(node, content)
		if running == nil {
			f.nodes[node] = f.start(node)
		}
	}
	for _, running := range f.nodes {
		rollout.awaitConfig(running, content)
	}
}

func (f *FormerFleet) start(node string) *Daemon {
	d := f.t.Daemons
	arguments := []string{"agent", "--server", node}
	if node == LBName(f.Number()) {
		arguments = []string{"lb", "--interface", "eth1"}
	}
	arguments = append(arguments, "--interface", "eth0", "-f", d.configPath(node))
	return &Daemon{Process: script.Must(d.lab.Start(host.Spawn{Node: node, Program: d.lab.Binary, Arguments: append(arguments, d.directories(node)...)}))}
}
