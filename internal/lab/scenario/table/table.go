// Package table holds what a table of connections says against the truth, through ends, silence, floods, limits, scrubbing and the loss of
// a load balancer.
package table

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

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
		Name: "table", Deadline: 4 * time.Minute, Do: runTable,
		Promise: "tables hold exactly the open connections; floods, limits, scrubbing and lost load balancers: no connection breaks",
	},
}

// Implementation constants.
const (
	tableIdle        = 5 * time.Second
	tableSettles     = 30 * time.Second // until ended entries are swept, on a machine that is busy with other things
	tableIdleClients = 12               // connections that say something and are silent then
	tableUpload      = 300_000          // bytes of it
	tableDownloads   = 24
	tableResets      = 8
	headerBytes      = 52   // of IP and TCP with timestamps
	countedShare     = 0.02 // that counters may be off: CPUs may overwrite each other's
)

// tableTopology has two load balancers. The router spreads connections by the hash that their sockets put on packets: without rehash each
// keeps its way also when it repeats packets, and so its one entry.
func tableTopology(servers ...world.ServerNode) world.Topology {
	return world.Topology{LBs: 2, Servers: servers, ClientSysctls: map[string]string{"net.core.txrehash": "0"}}
}

// tableTrial is a trial of a service with a table on every load balancer.
type tableTrial struct {
	*world.Trial
	result *scenario.Result
	lbs    []string
}

func runTable(run *scenario.Run) {
	for _, one := range []struct {
		what world.Setup
		run  func(*tableTrial)
	}{
		{world.Setup{
			Name: "entries", Services: []*fleet.Service{scenario.TableService(scenario.VIP4, model.Table{Entries: 4096, IdleTimeout: model.Duration(tableIdle)})},
			Topology: tableTopology(make([]world.ServerNode, 4)...),
		}, (*tableTrial).runEntries},
		{floodSetup(), (*tableTrial).runFloods},
		{policySetup(), (*tableTrial).runPolicies},
	} {
		run.Trial(one.what, func(t *world.Trial) {
			one.run(&tableTrial{Trial: t, result: run.Result, lbs: []string{world.LBName(1), world.LBName(2)}})
		})
	}
}

// silentClients are the idle clients, once all have their answers.
type silentClients map[netip.AddrPort]bool

func (x *tableTrial) runEntries() {
	running := x.Traffic.Generate(scenario.Downloads(x.Fleet.Target(), tableDownloads))
	await.Promised(x.Context, tableSettles, "tables list the downloads", func() error { return x.Tables.Listed(nil, x.lbs...) })
	idleClients := x.Traffic.Generate(traffic.Flow{
		Name: "hold", Target: x.Fleet.Target(), Count: tableIdleClients, Concurrent: tableIdleClients, PerSecond: 50, Requests: []traffic.Request{
			{Path: world.PathUpload + "hold", Bytes: tableUpload, Upload: true}, {Path: world.PathName, Pause: time.Hour}},
	})
	silent := silentClients{}
	for _, one := range []world.Step{
		{What: "tables are equal to the servers' sockets", Do: func() { x.awaitCounted(silent) }},
		{What: "reset connections", Do: x.resetSome},
		{What: "end connections", Do: x.endSome},
		{What: "tables hold nothing that has ended, nor what is silent", Do: func() { x.awaitFreed(silent) }},
		{What: "silent connections go on", Do: func() { x.speak(idleClients, silent) }},
		{What: "kill lb1; all its connections get entries on lb2", Do: x.lose1},
		{What: "lb1 returns", Do: func() { x.Failures.ReturnLB(1) }},
	} {
		x.Event(one.What, one.Do)
	}
	running.Finish(x.Context)
}

// awaitCounted waits until every open connection is in exactly one table, with its server, and those that have fallen silent with as
// many packets and bytes as the server's TCP got.
func (x *tableTrial) awaitCounted(silent silentClients) {
	exact := 0
	await.Promised(x.Context, tableSettles, "tables list the open connections with their packets and bytes", func() error {
		if err := x.Tables.Listed(nil, x.lbs...); err != nil {
			return err
		}
		have, err := x.Tables.Connections()
		if err != nil {
			return err
		}
		tables, err := x.Tables.Open(x.lbs...)
		if err != nil {
			return err
		}
		clear(silent)
		exact = 0
		for client, socket := range have {
			if socket.Received < tableUpload {
				continue
			}
			silent[client] = true
			one, listed := tables[world.LBName(1)][client]
			if !listed {
				one = tables[world.LBName(2)][client]
			}
			packets := float64(socket.SegmentsIn - 1) // a SYN has no entry
			bytes := float64(socket.Received) + headerBytes*packets
			if !near(float64(one.Packets), packets) || !near(float64(one.Bytes), bytes) {
				return fmt.Errorf("%v: %d packets, %d bytes in the table, %.0f and %.0f at %s", client, one.Packets, one.Bytes, packets, bytes, socket.Server)
			}
			if float64(one.Packets) == packets && float64(one.Bytes) == bytes {
				exact++
			}
		}
		if len(silent) != tableIdleClients || len(have) != tableIdleClients+tableDownloads {
			return fmt.Errorf("%d of %d have uploaded all, %d are open", len(silent), tableIdleClients, len(have))
		}
		return nil
	})
	x.result.Measure("connections_listed", tableIdleClients+tableDownloads)
	x.result.Measure("uploads_counted_exactly", float64(exact))
}

func near(is, want float64) bool { return is >= want*(1-countedShare) && is <= want*(1+countedShare) }

// resetSome opens connections that the clients then reset.
func (x *tableTrial) resetSome() {
	for i := range tableResets {
		connection := x.Clients.Dial(x.Network.SourceAddresses(false)[i])
		request, err := http.NewRequest(http.MethodGet, "http://"+x.Fleet.Target()+world.PathName, nil)
		if err == nil {
			err = request.Write(connection)
		}
		if err == nil {
			_, err = http.ReadResponse(bufio.NewReader(connection), request)
		}
		if err == nil {
			err = connection.(*net.TCPConn).SetLinger(0)
		}
		script.Checkf(errors.Join(err, connection.Close()), "reset a connection")
	}
}

// endSome opens connections that the clients end.
func (x *tableTrial) endSome() {
	before := script.Must(x.Counters.Verdicts(x.lbs...))
	ended := x.Traffic.Generate(scenario.Exchanges(x.Fleet.Target(), 60, 20_000))
	ended.Wait(x.Context)
	after := script.Must(x.Counters.Verdicts(x.lbs...))
	added := after["forwarded_added"] - before["forwarded_added"]
	x.result.Expect(added >= 60, "60 connections got %d entries", added)
}

// awaitFreed waits until entries are gone of connections that ended or say nothing. These live on.
func (x *tableTrial) awaitFreed(silent silentClients) {
	begin := time.Now()
	await.Promised(x.Context, tableSettles, "entries of ended and silent connections are free", func() error {
		if err := x.Tables.Listed(silent, x.lbs...); err != nil {
			return err
		}
		for _, lb := range x.lbs {
			all, err := x.Tables.Entries(lb)
			if err != nil {
				return err
			}
			for _, one := range all {
				if !world.IsOpen(one) || silent[one.Client] {
					return fmt.Errorf("%s still has %v, %s", lb, one.Client, one.State)
				}
			}
		}
		return nil
	})
	x.result.Measure("seconds_until_ended_are_free", world.Round(time.Since(begin)))
}

// speak lets the silent connections speak and end.
func (x *tableTrial) speak(idleClients *world.Load, silent silentClients) {
	have := script.Must(x.Tables.Connections())
	for client := range silent {
		x.result.Expect(have[client].Server != "", "%v has no connection any more: it was to be silent only", client)
	}
	clear(silent)
	idleClients.Finish(x.Context)
}

// lose1 ends lb1 as a power cut would.
func (x *tableTrial) lose1() {
	before := script.Must(x.Tables.Open(world.LBName(1)))
	moved := len(before[world.LBName(1)])
	x.result.Measure("killed_lb_connections", float64(moved))
	x.result.Expect(moved > 0, "lb1 had no connection: its death proves nothing")
	begin := time.Now()
	x.Failures.CrashLB(1)
	await.Promised(x.Context, tableSettles, "lb2 lists all connections", func() error { return x.Tables.Listed(nil, world.LBName(2)) })
	x.result.Measure("seconds_until_entries_elsewhere", world.Round(time.Since(begin)))
}
