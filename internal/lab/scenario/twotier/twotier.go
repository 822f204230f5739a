// Package twotier has servers and load balancers of both tiers come and go, then one that keeps tables die; no connection may break.
package twotier

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "two-tier", Deadline: 4 * time.Minute, Do: runTwoTier,
		Promise: "servers and load balancers of two tiers come and go, one that keeps tables dies: no connection breaks",
	},
}

// What two-tier promises to carry.
const (
	tierDownloads = 60
	tierBrowsers  = 40
	tierShorts    = 60  // a second
	tierWarmup    = 100 // connections before the first event
	tierKilledMin = 10  // connections that the killed node must have had, or its death proves nothing
)

func runTwoTier(run *scenario.Run) {
	death := &tierTrial{result: run.Result}
	servers, first := make([]world.ServerNode, 8), []int{1, 2, 3, 4, 5, 6}
	outcome := run.Trial(world.Setup{
		Name: "two tiers", Services: []*fleet.Service{scenario.TableService(scenario.VIP4, model.Table{})}, Members: first, Second: []int{1, 2, 3},
		Topology: world.Topology{LBs: 2, Second: 4, Servers: servers},
	}, death.run)
	run.Result.Expect(outcome.Throughout["download"] == tierDownloads, "only %d of %d downloads lasted from before the first event until after the last",
		outcome.Throughout["download"], tierDownloads)
	death.judge(outcome)
	run.Progress("two-tier: on the killed node: %.0f connections, survived: %.0f; of all others %.0f broke",
		run.Result.Measurements["killed_node_connections"], run.Result.Measurements["killed_node_survived"], run.Result.Measurements["others_broken"])
	baseline := run.Trial(world.Setup{
		Name: "local-table", Services: []*fleet.Service{scenario.LocalService(scenario.VIP4)}, Members: first, Topology: world.Topology{LBs: 3, Servers: servers}, Baseline: true,
	}, localTables)
	run.Progress("two-tier: one tier with tables of its own: %d of %d connections broke", baseline.Broken, baseline.Attempted)
}

// tierLoad is what clients do while the tiers change.
func tierLoad(t *world.Trial) *world.Load {
	running := t.Traffic.Generate(scenario.Downloads(t.Fleet.Target(), tierDownloads), scenario.Browsers(t.Fleet.Target(), tierBrowsers), scenario.Shorts(t.Fleet.Target(), tierShorts))
	t.Traffic.Until(running, 30*time.Second, "all downloads and browsers are open", func(p traffic.Progress) bool {
		return p.OpenByFlow["download"] == tierDownloads && p.OpenByFlow["browse"] == tierBrowsers
	})
	t.Traffic.Busy(running, tierWarmup)
	return running
}

// tierTrial is the series of events, and what is known of the connections of the node that is killed.
type tierTrial struct {
	*world.Trial
	result *scenario.Result
	killed map[netip.AddrPort]api.Connection // what its table held
	from   time.Time                         // when that was asked
	at     time.Time                         // when it was dead
}

func (d *tierTrial) run(t *world.Trial) {
	d.Trial = t
	running := tierLoad(t)
	t.Series(running,
		world.Step{What: "add servers s7 and s8", Do: func() { t.Pool.AddServer(7); t.Pool.AddServer(8); t.Rollout.Apply() }},
		world.Step{What: "kill lb1 of the first tier", Do: func() { t.Failures.CrashLB(1) }},
		world.Step{What: "add the next key", Do: func() { t.Pool.AddKey(2); t.Rollout.Apply() }},
		world.Step{What: "drain servers s1 and s2", Do: func() { t.Pool.Drain(1); t.Pool.Drain(2); t.Rollout.Apply() }},
		world.Step{What: "add second4 to the second tier", Do: func() { t.Pool.AddSecond(4); t.Rollout.Apply() }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }},
		world.Step{What: "drain second1", Do: func() { t.Pool.DrainSecond(1); t.Rollout.Apply() }},
		world.Step{What: "use the next key", Do: func() { t.Fleet.Keys.Current = 2; t.Rollout.Apply() }},
		world.Step{What: "remove servers s1 and s2", Do: func() { t.Pool.RemoveServer(1); t.Pool.RemoveServer(2); t.Rollout.Apply() }},
		world.Step{What: "every connection has been on one node of the second tier", Do: d.judgePlaces},
		// It still has connections: they move to other nodes, with their servers.
		world.Step{What: "remove second1", Do: func() { t.Pool.RemoveSecond(1); t.Rollout.Apply() }})
	t.Event("kill second2", func() { d.kill(2) })
	t.Series(running,
		world.Step{What: "its connections have entries elsewhere", Do: d.awaitElsewhere},
		world.Step{What: "second2 returns", Do: func() { t.Failures.ReturnSecond(2) }})
	running.Finish(t.Context)
}

// nodes are the load balancers of the second tier but some.
func (d *tierTrial) nodes(but ...int) (names []string) {
	for i := range d.Network.Second {
		if !slices.Contains(but, i+1) {
			names = append(names, world.SecondName(i+1))
		}
	}
	return names
}

// judgePlaces: through all changes every connection stayed with one node of the second tier.
func (d *tierTrial) judgePlaces() {
	tables := script.Must(d.Tables.Open(d.nodes()...))
	times := map[netip.AddrPort]int{}
	for _, table := range tables {
		for client := range table {
			times[client]++
		}
	}
	have := script.Must(d.Tables.Connections())
	listed, twice := 0, 0
	for client := range have {
		listed += min(times[client], 1)
		twice += max(times[client]-1, 0)
	}
	d.result.Measure("connections_listed", float64(listed))
	d.result.Measure("connections_on_two_nodes", float64(twice))
	d.result.Expect(listed >= tierDownloads+tierBrowsers, "of %d connections only %d are in a table", len(have), listed)
	// One that is made while the pool changes may have its first packets counted by two nodes.
	d.result.Expect(twice <= listed/50, "%d of %d connections have been on two nodes of the second tier", twice, listed)
	first := script.Must(d.Counters.Verdicts(world.LBName(1), world.LBName(2)))
	second := script.Must(d.Counters.Verdicts(d.nodes()...))
	followed := func(v map[string]uint64, verdict string, others ...string) float64 {
		all := v[verdict]
		for _, other := range others {
			all += v[other]
		}
		return 100 * float64(v[verdict]) / float64(max(all, 1))
	}
	byNode := followed(first, "forwarded_by_cookie", "forwarded_no_node", "forwarded_bad_cookie")
	byTable := followed(second, "forwarded_by_table", "forwarded_added", "forwarded_table_full", "forwarded_by_cookie", "forwarded_bad_cookie")
	d.result.Measure("first_tier_percent_by_node", byNode)
	d.result.Measure("second_tier_percent_by_entry", byTable)
	d.result.Expect(byNode > 80 && byTable > 80, "only %.0f %% of the first tier's packets found their node, and %.0f %% of the second tier's their entry", byNode, byTable)
	d.result.Expect(second["forwarded_table_full"] == 0, "tables were full")
}

// kill ends a node as a power cut would, just after its table was asked.
func (d *tierTrial) kill(i int) {
	name := world.SecondName(i)
	d.from = time.Now()
	tables := script.Must(d.Tables.Open(name))
	d.killed = tables[name]
	d.Failures.Crash(d.Daemons.Second[name], "eth0")
	d.at = time.Now()
}

// awaitElsewhere waits until all connections of the killed node that are still open have entries on others.
func (d *tierTrial) awaitElsewhere() {
	moved := 0
	await.Promised(d.Context, world.Stall, "the connections of the killed node have entries elsewhere", func() error {
		have, err := d.Tables.Connections()
		if err != nil {
			return err
		}
		tables, err := d.Tables.Open(d.nodes(1, 2)...)
		if err != nil {
			return err
		}
		moved = 0
		for client := range d.killed {
			if _, still := have[client]; !still {
				continue
			}
			listed := false
			for _, table := range tables {
				_, here := table[client]
				listed = listed || here
			}
			if !listed {
				return fmt.Errorf("%v has none", client)
			}
			moved++
		}
		return nil
	})
	d.result.Measure("killed_node_entries_elsewhere", float64(moved))
	d.result.Measure("seconds_until_entries_elsewhere", world.Round(time.Since(d.at)))
}

// judge tells the fate of the connections that were on the killed node from that of the others.
func (d *tierTrial) judge(outcome world.Result) {
	on, survived := 0, 0
	for _, running := range d.Traffic.Loads() {
		for _, connection := range running.Connections {
			source, err := netip.ParseAddrPort(connection.Source)
			if _, here := d.killed[source]; err != nil || !here || connection.Started.After(d.from) || connection.Ended.Before(d.at) {
				continue
			}
			on++
			if connection.Class == traffic.Completed {
				survived++
			}
		}
	}
	d.result.Measure("killed_node_entries", float64(len(d.killed)))
	d.result.Measure("killed_node_connections", float64(on))
	d.result.Measure("killed_node_survived", float64(survived))
	d.result.Measure("others_broken", float64(outcome.Broken-(on-survived)))
	d.result.Expect(on >= tierKilledMin, "only %d connections were on the killed node: its death proves nothing", on)
	d.result.Expect(survived == on, "of %d connections on the killed node only %d survived", on, survived)
}

// localTables puts one tier, whose load balancers know nothing of each other's tables, through what the two tiers went through.
func localTables(t *world.Trial) {
	running := tierLoad(t)
	t.Series(running,
		world.Step{What: "add servers s7 and s8", Do: func() { t.Pool.AddServer(7); t.Pool.AddServer(8); t.Rollout.Apply() }},
		world.Step{What: "kill lb1", Do: func() { t.Failures.CrashLB(1) }},
		world.Step{What: "drain servers s1 and s2", Do: func() { t.Pool.Drain(1); t.Pool.Drain(2); t.Rollout.Apply() }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }},
		world.Step{What: "remove servers s1 and s2", Do: func() { t.Pool.RemoveServer(1); t.Pool.RemoveServer(2); t.Rollout.Apply() }},
		world.Step{What: "kill lb2", Do: func() { t.Failures.CrashLB(2) }},
		world.Step{What: "lb2 returns", Do: func() { t.Failures.ReturnLB(2) }})
}
