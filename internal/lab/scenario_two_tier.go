// two-tier: servers and load balancers of both tiers come and go, then one that keeps tables dies; no connection may break.
package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// What two-tier promises to carry.
const (
	tierDownloads = 60
	tierBrowsers  = 40
	tierShorts    = 60  // a second
	tierWarmup    = 100 // connections before the first event
	tierKilledMin = 10  // connections that the killed node must have had, or its death proves nothing
)

func runTwoTier(s *stage) error {
	death := &tierTrial{result: s.result}
	servers, first := make([]ServerNode, 8), []int{1, 2, 3, 4, 5, 6}
	outcome, err := s.trial(setup{
		name: "two tiers", services: []*service{tableService(vip4, serviceTable{})}, members: first, second: []int{1, 2, 3},
		topology: Topology{LBs: 2, Second: 4, Servers: servers},
	}, death.play)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.Throughout["download"] == tierDownloads, "only %d of %d downloads lasted from before the first event until after the last",
		outcome.Throughout["download"], tierDownloads)
	death.judge(outcome)
	s.Progress("two-tier: on the killed node: %.0f connections, survived: %.0f; of all others %.0f broke",
		s.result.Measurements["killed_node_connections"], s.result.Measurements["killed_node_survived"], s.result.Measurements["others_broken"])
	baseline, err := s.trial(setup{
		name: "local-table", services: []*service{localService(vip4)}, members: first, topology: Topology{LBs: 3, Servers: servers}, baseline: true,
	}, localTables)
	if err != nil {
		return err
	}
	s.result.expect(baseline.Broken > 0, "the baseline broke nothing: the events prove nothing")
	s.Progress("two-tier: one tier with tables of its own: %d of %d connections broke", baseline.Broken, baseline.Attempted)
	return nil
}

// tierLoad is what clients do while the tiers change.
func (t *trial) tierLoad() (*load, error) {
	running, err := t.generate(downloads(t.target(), tierDownloads), browsers(t.target(), tierBrowsers), shorts(t.target(), tierShorts))
	if err != nil {
		return nil, err
	}
	err = t.until(running, 30*time.Second, "all downloads and browsers are open", func(p traffic.Progress) bool {
		return p.OpenByFlow["download"] == tierDownloads && p.OpenByFlow["browse"] == tierBrowsers
	})
	return running, errors.Join(err, t.busy(running, tierWarmup))
}

// tierTrial is the series of events, and what is known of the connections of the node that is killed.
type tierTrial struct {
	*trial
	result *Result
	killed map[netip.AddrPort]api.Connection // what its table held
	from   time.Time                         // when that was asked
	at     time.Time                         // when it was dead
}

func (d *tierTrial) play(t *trial) error {
	d.trial = t
	running, err := t.tierLoad()
	if err != nil {
		return err
	}
	err = t.series(running,
		step{"add servers s7 and s8", func() error { t.addServer(7); t.addServer(8); return t.apply() }},
		step{"kill lb1 of the first tier", func() error { return t.crashLB(1) }},
		step{"add the next key", func() error { t.addKey(2); return t.apply() }},
		step{"drain servers s1 and s2", func() error { t.drain(1); t.drain(2); return t.apply() }},
		step{"add second4 to the second tier", func() error { t.addSecond(4); return t.apply() }},
		step{"lb1 returns", func() error { return t.returnLB(1) }},
		step{"drain second1", func() error { t.drainSecond(1); return t.apply() }},
		step{"use the next key", func() error { t.fleet.Keys.Current = 2; return t.apply() }},
		step{"remove servers s1 and s2", func() error { t.removeServer(1); t.removeServer(2); return t.apply() }},
		step{"every connection has been on one node of the second tier", d.judgePlaces},
		// It still has connections: they move to other nodes, with their servers.
		step{"remove second1", func() error { t.removeSecond(1); return t.apply() }})
	if err != nil {
		return err
	}
	if err := t.event("kill second2", func() error { return d.kill(2) }); err != nil {
		return err
	}
	err = t.series(running,
		step{"its connections have entries elsewhere", d.awaitElsewhere},
		step{"second2 returns", func() error { return t.returnSecond(2) }})
	if err != nil {
		return err
	}
	return running.finish(t.ctx)
}

// nodes are the load balancers of the second tier but some.
func (d *tierTrial) nodes(but ...int) (names []string) {
	for i := range d.topo.Second {
		if !slices.Contains(but, i+1) {
			names = append(names, secondName(i+1))
		}
	}
	return names
}

// judgePlaces: through all changes every connection stayed with one node of the second tier.
func (d *tierTrial) judgePlaces() error {
	tables, err := d.tables(d.nodes()...)
	if err != nil {
		return err
	}
	times := map[netip.AddrPort]int{}
	for _, table := range tables {
		for client := range table {
			times[client]++
		}
	}
	have, err := d.connections()
	if err != nil {
		return err
	}
	listed, twice := 0, 0
	for client := range have {
		listed += min(times[client], 1)
		twice += max(times[client]-1, 0)
	}
	d.result.measure("connections_listed", float64(listed))
	d.result.measure("connections_on_two_nodes", float64(twice))
	d.result.expect(listed >= tierDownloads+tierBrowsers, "of %d connections only %d are in a table", len(have), listed)
	// One that is made while the pool changes may have its first packets counted by two nodes.
	d.result.expect(twice <= listed/50, "%d of %d connections have been on two nodes of the second tier", twice, listed)
	first, err := d.verdicts(lbName(1), lbName(2))
	if err != nil {
		return err
	}
	second, err := d.verdicts(d.nodes()...)
	if err != nil {
		return err
	}
	followed := func(v map[string]uint64, verdict string, others ...string) float64 {
		all := v[verdict]
		for _, other := range others {
			all += v[other]
		}
		return 100 * float64(v[verdict]) / float64(max(all, 1))
	}
	byNode := followed(first, "forwarded_by_cookie", "forwarded_no_node", "forwarded_bad_cookie")
	byTable := followed(second, "forwarded_by_table", "forwarded_added", "forwarded_table_full", "forwarded_by_cookie", "forwarded_bad_cookie")
	d.result.measure("first_tier_percent_by_node", byNode)
	d.result.measure("second_tier_percent_by_entry", byTable)
	d.result.expect(byNode > 80 && byTable > 80, "only %.0f %% of the first tier's packets found their node, and %.0f %% of the second tier's their entry", byNode, byTable)
	d.result.expect(second["forwarded_table_full"] == 0, "tables were full")
	return nil
}

// kill ends a node as a power cut would, just after its table was asked.
func (d *tierTrial) kill(i int) error {
	name := secondName(i)
	d.from = time.Now()
	tables, err := d.tables(name)
	if err != nil {
		return err
	}
	d.killed = tables[name]
	err = d.crash(d.second[name], "eth0")
	d.at = time.Now()
	return err
}

// awaitElsewhere waits until all connections of the killed node that are still open have entries on others.
func (d *tierTrial) awaitElsewhere() error {
	moved := 0
	err := awaitPromised(d.ctx, stall, "the connections of the killed node have entries elsewhere", func() error {
		have, err := d.connections()
		if err != nil {
			return err
		}
		tables, err := d.tables(d.nodes(1, 2)...)
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
	d.result.measure("killed_node_entries_elsewhere", float64(moved))
	d.result.measure("seconds_until_entries_elsewhere", round(time.Since(d.at)))
	return err
}

// judge tells the fate of the connections that were on the killed node from that of the others.
func (d *tierTrial) judge(outcome Trial) {
	on, survived := 0, 0
	for _, running := range d.loads {
		for _, connection := range running.connections {
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
	d.result.measure("killed_node_entries", float64(len(d.killed)))
	d.result.measure("killed_node_connections", float64(on))
	d.result.measure("killed_node_survived", float64(survived))
	d.result.measure("others_broken", float64(outcome.Broken-(on-survived)))
	d.result.expect(on >= tierKilledMin, "only %d connections were on the killed node: its death proves nothing", on)
	d.result.expect(survived == on, "of %d connections on the killed node only %d survived", on, survived)
}

// localTables puts one tier, whose load balancers know nothing of each other's tables, through what the two tiers went through.
func localTables(t *trial) error {
	running, err := t.tierLoad()
	if err != nil {
		return err
	}
	return t.series(running,
		step{"add servers s7 and s8", func() error { t.addServer(7); t.addServer(8); return t.apply() }},
		step{"kill lb1", func() error { return t.crashLB(1) }},
		step{"drain servers s1 and s2", func() error { t.drain(1); t.drain(2); return t.apply() }},
		step{"lb1 returns", func() error { return t.returnLB(1) }},
		step{"remove servers s1 and s2", func() error { t.removeServer(1); t.removeServer(2); return t.apply() }},
		step{"kill lb2", func() error { return t.crashLB(2) }},
		step{"lb2 returns", func() error { return t.returnLB(2) }})
}
