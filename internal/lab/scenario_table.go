// table: what a table of connections says is true, through ends, silence and the loss of a load balancer; floods, limits and scrubbing
// are in files of their own.
package lab

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Implementation constants.
const (
	tableIdle      = 5 * time.Second
	tableSettles   = 30 * time.Second // until ended entries are swept, on a machine that is busy with other things
	tableHolders   = 12               // connections that say something and are silent then
	tableUpload    = 300_000          // bytes of it
	tableDownloads = 24
	tableResets    = 8
	headerBytes    = 52   // of IP and TCP with timestamps
	countedShare   = 0.02 // that counters may be off: CPUs may overwrite each other's
)

// tableTopology has two load balancers. The router spreads connections by the hash that their sockets put on packets: without rehash each
// keeps its way also when it repeats packets, and so its one entry.
func tableTopology(servers ...ServerNode) Topology {
	return Topology{LBs: 2, Servers: servers, ClientSysctls: map[string]string{"net.core.txrehash": "0"}}
}

// tableTrial is a trial of a service with a table on every load balancer.
type tableTrial struct {
	*trial
	result *Result
	lbs    []string
}

func runTable(s *stage) error {
	for _, one := range []struct {
		what setup
		play func(*tableTrial) error
	}{
		{setup{
			name: "entries", services: []*service{tableService(vip4, serviceTable{Entries: 4096, IdleTimeout: tableIdle.String()})},
			topology: tableTopology(make([]ServerNode, 4)...),
		}, (*tableTrial).playEntries},
		{floodSetup(), (*tableTrial).playFloods},
		{policySetup(), (*tableTrial).playPolicies},
	} {
		outcome, err := s.trial(one.what, func(t *trial) error {
			return one.play(&tableTrial{trial: t, result: s.result, lbs: []string{lbName(1), lbName(2)}})
		})
		if err != nil {
			return err
		}
		s.unbroken(outcome)
	}
	return nil
}

// silentClients are the clients of the holders, once all have their answers.
type silentClients map[netip.AddrPort]bool

func (x *tableTrial) playEntries() error {
	running, err := x.generate(downloads(x.target(), tableDownloads))
	if err != nil {
		return err
	}
	err = awaitPromised(x.ctx, tableSettles, "tables list the downloads", func() error { return x.listed(nil, x.lbs...) })
	if err != nil {
		return err
	}
	holders, err := x.generate(traffic.Flow{
		Name: "hold", Target: x.target(), Count: tableHolders, Concurrent: tableHolders, PerSecond: 50, Requests: []traffic.Request{
			{Path: pathUpload + "hold", Bytes: tableUpload, Upload: true}, {Path: pathName, Pause: time.Hour}},
	})
	if err != nil {
		return err
	}
	silent := silentClients{}
	for _, one := range []step{
		{"tables are equal to the servers' sockets", func() error { return x.awaitCounted(silent) }},
		{"reset connections", x.resetSome},
		{"end connections", x.endSome},
		{"tables hold nothing that has ended, nor what is silent", func() error { return x.awaitFreed(silent) }},
		{"silent connections go on", func() error { return x.speak(holders, silent) }},
		{"kill lb1; all its connections get entries on lb2", x.lose1},
		{"lb1 returns", func() error { return x.returnLB(1) }},
	} {
		if err := x.event(one.what, one.do); err != nil {
			return err
		}
	}
	return running.finish(x.ctx)
}

// awaitCounted waits until every open connection is in exactly one table, with its server, and those that have fallen silent with as
// many packets and bytes as the server's TCP got.
func (x *tableTrial) awaitCounted(silent silentClients) error {
	exact := 0
	err := awaitPromised(x.ctx, tableSettles, "tables list the open connections with their packets and bytes", func() error {
		if err := x.listed(nil, x.lbs...); err != nil {
			return err
		}
		have, err := x.connections()
		if err != nil {
			return err
		}
		tables, err := x.tables(x.lbs...)
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
			one, listed := tables[lbName(1)][client]
			if !listed {
				one = tables[lbName(2)][client]
			}
			packets := float64(socket.SegmentsIn - 1) // a SYN has no entry
			bytes := float64(socket.Received) + headerBytes*packets
			if !near(float64(one.Packets), packets) || !near(float64(one.Bytes), bytes) {
				return fmt.Errorf("%v: %d packets, %d bytes in the table, %.0f and %.0f at %s", client, one.Packets, one.Bytes, packets, bytes, socket.server)
			}
			if float64(one.Packets) == packets && float64(one.Bytes) == bytes {
				exact++
			}
		}
		if len(silent) != tableHolders || len(have) != tableHolders+tableDownloads {
			return fmt.Errorf("%d of %d have uploaded all, %d are open", len(silent), tableHolders, len(have))
		}
		return nil
	})
	x.result.measure("connections_listed", tableHolders+tableDownloads)
	x.result.measure("uploads_counted_exactly", float64(exact))
	return err
}

func near(is, want float64) bool { return is >= want*(1-countedShare) && is <= want*(1+countedShare) }

// resetSome opens connections that the clients then reset.
func (x *tableTrial) resetSome() error {
	for i := range tableResets {
		connection, err := x.dial(x.topo.sourceAddresses(false)[i])
		if err != nil {
			return err
		}
		request, err := http.NewRequest(http.MethodGet, "http://"+x.target()+pathName, nil)
		if err == nil {
			err = request.Write(connection)
		}
		if err == nil {
			_, err = http.ReadResponse(bufio.NewReader(connection), request)
		}
		if err == nil {
			err = connection.(*net.TCPConn).SetLinger(0)
		}
		if err := errors.Join(err, connection.Close()); err != nil {
			return fmt.Errorf("reset a connection: %w", err)
		}
	}
	return nil
}

// endSome opens connections that the clients end.
func (x *tableTrial) endSome() error {
	before, err := x.verdicts(x.lbs...)
	if err != nil {
		return err
	}
	ended, err := x.generate(exchanges(x.target(), 60, 20_000))
	if err != nil {
		return err
	}
	if err := ended.wait(x.ctx); err != nil {
		return err
	}
	after, err := x.verdicts(x.lbs...)
	if err != nil {
		return err
	}
	added := after["forwarded_added"] - before["forwarded_added"]
	x.result.expect(added >= 60, "60 connections got %d entries", added)
	return nil
}

// awaitFreed waits until entries are gone of connections that ended or say nothing. These live on.
func (x *tableTrial) awaitFreed(silent silentClients) error {
	begin := time.Now()
	err := awaitPromised(x.ctx, tableSettles, "entries of ended and silent connections are free", func() error {
		if err := x.listed(silent, x.lbs...); err != nil {
			return err
		}
		for _, lb := range x.lbs {
			all, err := x.entries(lb)
			if err != nil {
				return err
			}
			for _, one := range all {
				if !isOpen(one) || silent[one.Client] {
					return fmt.Errorf("%s still has %v, %s", lb, one.Client, one.State)
				}
			}
		}
		return nil
	})
	x.result.measure("seconds_until_ended_are_free", round(time.Since(begin)))
	return err
}

// speak lets the silent connections speak and end.
func (x *tableTrial) speak(holders *load, silent silentClients) error {
	have, err := x.connections()
	if err != nil {
		return err
	}
	for client := range silent {
		x.result.expect(have[client].server != "", "%v has no connection any more: it was to be silent only", client)
	}
	clear(silent)
	return holders.finish(x.ctx)
}

// lose1 ends lb1 as a power cut would.
func (x *tableTrial) lose1() error {
	before, err := x.tables(lbName(1))
	if err != nil {
		return err
	}
	moved := len(before[lbName(1)])
	x.result.measure("killed_lb_connections", float64(moved))
	x.result.expect(moved > 0, "lb1 had no connection: its death proves nothing")
	begin := time.Now()
	if err := x.crashLB(1); err != nil {
		return err
	}
	err = awaitPromised(x.ctx, tableSettles, "lb2 lists all connections", func() error { return x.listed(nil, lbName(2)) })
	x.result.measure("seconds_until_entries_elsewhere", round(time.Since(begin)))
	return err
}
