package sessions

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// dockerRules are what Docker has on a host with a published port, neither of which is about the service.
const dockerRules = `table ip nat {
	chain postrouting { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 masquerade; }
	chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local tcp dport 7777 dnat to 172.17.0.2:80; }
}
`

const (
	betweenRules   = 10 // connections of each client
	translated     = 8  // clients
	trackedClients = 6  // at a time
)

// runTranslation has servers translate addresses of other connections before clients come, and from one moment on.
func runTranslation(run *scenario.Run) {
	seen := map[string]tlsclient.Outcome{}
	outcome := run.Uncounted(translation("translation"), func(t *world.Trial) {
		translate(t, 1)
		t.Endpoints.StartTLS(true, false)
		clients := t.Clients.StartTLS(clientsOf("translation", t.Fleet.Target(), translated))
		clients.More(betweenRules)
		t.Event("s2 translates addresses", func() { translate(t, 2) })
		clients.More(betweenRules)
		for i := range t.Network.Servers {
			run.Result.Expect(!resets(t, world.ServerName(i+1)), "the agent of %s says that connections are reset", world.ServerName(i+1))
		}
		seen = clients.End()
	})
	count(run, outcome, seen)
	for _, name := range []string{world.ServerName(1), world.ServerName(2)} {
		run.Result.Expect(seen["translation"].Servers[name] > 0, "no connection reached %s: %v", name, seen["translation"].Servers)
	}
	of := translation("tracked")
	of.AgentFlags, of.Cuts = []string{"--keep-tracking"}, true
	run.Uncounted(of, func(t *world.Trial) { resetByKernel(t, run.Result) })
}

func translation(name string) world.Setup {
	of := setup(name, service(scenario.VIP4, unchecked))
	of.Members, of.Topology = []int{1, 2}, world.Topology{LBs: 1, Servers: make([]world.ServerNode, 2)}
	return of
}

// resetByKernel: with the agent's table turned off the rules do reset connections, and the agent says so.
func resetByKernel(t *world.Trial, result *scenario.Result) {
	translate(t, 1)
	t.Endpoints.StartTLS(true, false)
	group := tlsclient.Group{Name: "tracked", Target: t.Fleet.Target(), Clients: trackedClients, Sessions: 1, TLS13: true}
	broken, made := 0, 0
	await.Until(t.Context, await.Deadline, "the agent of s1 says that the kernel resets connections", func() error {
		of := t.Clients.StartTLS(group).Wait()[group.Name]
		made, broken = made+of.Answered(), broken+of.BrokenConnections()
		result.Expect(of.Servers[world.ServerName(1)] == 0, "a connection reached s1")
		if output := resets(t, world.ServerName(1)); !output {
			return fmt.Errorf("it does not, after %d broken connections", broken)
		}
		return nil
	})
	result.Measure("reset_tracked", float64(broken))
	result.Expect(broken > 0, "no connection was reset: the trial before proves nothing")
	result.Expect(made > 0, "no connection reached s2, whose kernel translates nothing")
	result.Expect(!resets(t, world.ServerName(2)), "the agent of s2 says that connections are reset")
}

// translate loads the rules at a server.
func translate(t *world.Trial, server int) {
	script.Check(t.Lab.Run(world.ServerName(server), dockerRules, "nft", "-f", "-"))
}

// resets reports whether the agent of a server says that its kernel resets connections.
func resets(t *world.Trial, node string) bool {
	status := script.Must(t.Monitor.AgentStatus(node))
	return slices.ContainsFunc(status.Problems, func(p string) bool { return strings.Contains(p, "the kernel has reset connections") })
}
