// What connections there are: requests that go through the tables.
package sweeper

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/model"
)

// lookChunk is how many blocks are searched before others may have the tables again: a few milliseconds.
const lookChunk = 512

// connectionOrders are by what connections can be sorted, the first first.
var connectionOrders = map[string]func(a, b *connections.Connection) int{
	"packets": func(a, b *connections.Connection) int { return cmp.Compare(b.Packets, a.Packets) },
	"bytes":   func(a, b *connections.Connection) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"age":     func(a, b *connections.Connection) int { return cmp.Compare(b.First, a.First) },
	"idle":    func(a, b *connections.Connection) int { return cmp.Compare(b.Last, a.Last) },
}

// query goes through tables for one request.
type query struct {
	api.ConnectionQuery
	order  func(a, b *connections.Connection) int
	state  conntable.State // StateNone: any
	table  *table
	server map[uint16]bool // ids of the server asked for in table; nil: any

	matched uint64
	found   []foundConnection
	worst   *connections.Connection // of those that would be in the answer; nil: all would
	counts  []api.ConnectionCounts
}

type foundConnection struct {
	connections.Connection
	table *table
}

// Connections answers api.PathConnections.
func (k *Sweeper) Connections(r *http.Request) (any, error) {
	asked, err := api.ParseConnectionQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	q, err := newQuery(asked)
	if err != nil {
		return nil, err
	}
	var tables []*table
	answer := api.Connections{Tables: []api.ConnectionTable{}, Connections: []api.Connection{}}
	k.hold(func(h held) {
		answer.Node = h.now.Self
		tables, answer.SecondTier, err = h.tablesOf(q)
	})
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		answer.Tables = append(answer.Tables, q.summary(k.search(q, t)))
	}
	q.prune()
	answer.Matched = q.matched
	for i := range q.found {
		answer.Connections = append(answer.Connections, q.found[i].toAPI())
	}
	return answer, nil
}

func newQuery(asked api.ConnectionQuery) (*query, error) {
	q := &query{ConnectionQuery: asked, order: connectionOrders[cmp.Or(asked.Sort, "packets")]}
	if q.order == nil {
		return nil, api.BadRequest("connections cannot be sorted by %q: use packets, bytes, age or idle", asked.Sort)
	}
	if asked.Limit < 0 || asked.Limit > api.MaxConnections {
		return nil, api.BadRequest("a list of %d connections: ask for 1 to %d", asked.Limit, api.MaxConnections)
	}
	q.Limit = cmp.Or(asked.Limit, api.DefaultConnections)
	if asked.State != "" {
		state := slices.Index(conntable.States[:], asked.State)
		if state <= int(conntable.StateNone) {
			return nil, api.BadRequest("connections have no state %q: use new, open, finished or reset", asked.State)
		}
		q.state = conntable.State(state)
	}
	return q, nil
}

// tablesOf returns the tables that a query is about, and the services of all that it leaves to the second tier.
func (h held) tablesOf(q *query) (tables []*table, elsewhere []string, err error) {
	if q.Service != "" {
		t, err := h.tableOf(q.Service)
		if err != nil {
			return nil, nil, err
		}
		tables = []*table{t}
	} else {
		tables, elsewhere = h.tables, h.inSecondTier()
	}
	if q.Server == "" {
		return tables, elsewhere, nil
	}
	named := slices.DeleteFunc(slices.Clone(tables), func(t *table) bool { return len(t.ids(q.Server)) == 0 })
	switch {
	case len(named) > 0:
		return named, elsewhere, nil
	case len(elsewhere) > 0:
		return nil, nil, api.BadRequest("this node is of the first tier: connections of service %s are in the tables of the second: ask its nodes", strings.Join(elsewhere, ", "))
	}
	return nil, nil, api.BadRequest("no service with a table has a server %q: see `ballast ctl server list`", q.Server)
}

// inSecondTier names the services whose tables nodes of the second tier have.
func (h held) inSecondTier() (services []string) {
	for i := range h.now.Running.Services {
		if s := &h.now.Running.Services[i]; h.now.SendsToNodes(s) {
			services = append(services, s.Name)
		}
	}
	slices.Sort(services)
	return services
}

// tableOf returns a service's table.
func (h held) tableOf(service string) (*table, error) {
	s := h.now.Running.Service(service)
	if s == nil {
		return nil, api.BadRequest("there is no service %q: see `ballast ctl service list`", service)
	}
	if s.Affinity != model.AffinityTable {
		return nil, api.BadRequest("service %s has affinity %s, and no table of connections: give it affinity table", service, s.Affinity)
	}
	for _, t := range h.tables {
		if t.service == service {
			return t, nil
		}
	}
	if h.now.SendsToNodes(s) {
		return nil, api.BadRequest("this node is of the first tier: the connections of service %s are in the tables of the second: ask its nodes", service)
	}
	return nil, api.BadRequest("service %s has no table yet: see `ballast ctl status`", service)
}

// ids are those of the servers of a name: one that was removed may have the name of one that came.
func (t *table) ids(server string) map[uint16]bool {
	ids := map[uint16]bool{}
	for id, name := range t.servers {
		if name == server {
			ids[id] = true
		}
	}
	return ids
}

// search goes through a table. Where the table is replaced meanwhile, the rest is left out.
func (k *Sweeper) search(q *query, t *table) (occupancy connections.Occupancy) {
	q.table, q.counts, q.server = t, nil, nil
	if q.Server != "" {
		q.server = t.ids(q.Server)
	}
	k.flushCounts()
	there := true
	for block := uint32(0); block < t.Blocks && there; block += lookChunk {
		k.hold(func(h held) {
			there = slices.ContainsFunc(h.tables, func(now *table) bool {
				return now.service == t.service && now.number == t.number && now.Table == t.Table
			})
			if !there {
				return
			}
			if block == 0 {
				occupancy = k.path.Connections().Occupancy(t.Table)
			}
			k.path.Connections().Each(t.Table, block, lookChunk, q.visit)
		})
	}
	return occupancy
}

func (q *query) visit(c *connections.Connection) {
	if int(c.Server) >= len(q.counts) {
		q.counts = append(q.counts, make([]api.ConnectionCounts, int(c.Server)+1-len(q.counts))...)
	}
	count(&q.counts[c.Server], c)
	if !q.matches(c) {
		return
	}
	q.matched++
	if q.worst != nil && q.order(q.worst, c) <= 0 {
		return
	}
	q.found = append(q.found, foundConnection{*c, q.table})
	if len(q.found) >= 2*q.Limit {
		q.prune()
	}
}

func (q *query) matches(c *connections.Connection) bool {
	return (q.state == conntable.StateNone || c.State == q.state) && (q.server == nil || q.server[c.Server]) && (c.Suspect || !q.Suspects) &&
		uint64(c.Packets) >= q.MinPackets && c.Bytes >= q.MinBytes && c.First >= q.MinAge.Duration() && c.Last >= q.MinIdle.Duration() &&
		(!q.Client.IsValid() || q.Client.Contains(c.Client.Addr()))
}

// prune keeps the connections that are first in the order.
func (q *query) prune() {
	slices.SortStableFunc(q.found, func(a, b foundConnection) int {
		return cmp.Or(q.order(&a.Connection, &b.Connection), strings.Compare(a.table.service, b.table.service), cmp.Compare(a.Entry, b.Entry))
	})
	if len(q.found) >= q.Limit {
		q.found = q.found[:q.Limit]
		q.worst = new(q.found[q.Limit-1].Connection)
	}
}

func count(counts *api.ConnectionCounts, c *connections.Connection) {
	switch c.State {
	case conntable.StateNew:
		counts.New++
	case conntable.StateOpen:
		counts.Open++
	case conntable.StateFinished:
		counts.Finished++
	case conntable.StateReset:
		counts.Reset++
	}
	if c.Suspect {
		counts.Suspects++
	}
	counts.Packets += uint64(c.Packets)
	counts.Bytes += c.Bytes
}

// summary is the table that was searched last, as a whole.
func (q *query) summary(o connections.Occupancy) api.ConnectionTable {
	t := api.ConnectionTable{Service: q.table.service, Entries: o.Entries, Used: o.Used(), Free: o.Free, Ended: o.Ended, Servers: []api.ServerConnections{}}
	for id, counts := range q.counts {
		if counts == (api.ConnectionCounts{}) {
			continue
		}
		t.Servers = append(t.Servers, api.ServerConnections{Server: q.table.name(uint16(id)), ID: uint16(id), ConnectionCounts: counts})
		t.New += counts.New
		t.Open += counts.Open
		t.Finished += counts.Finished
		t.Reset += counts.Reset
		t.Suspects += counts.Suspects
		t.Packets += counts.Packets
		t.Bytes += counts.Bytes
	}
	return t
}

// name is that of a server; one that was forgotten has none.
func (t *table) name(id uint16) string {
	return cmp.Or(t.servers[id], fmt.Sprintf("(id %d)", id))
}

func (f *foundConnection) toAPI() api.Connection {
	return api.Connection{Service: f.table.service, Server: f.table.name(f.Server), ID: f.Server, Client: f.Client, State: f.State.String(), Suspect: f.Suspect,
		Packets: f.Packets, Bytes: f.Bytes, Age: api.InSeconds(f.First.Round(time.Millisecond)), Idle: api.InSeconds(f.Last.Round(time.Millisecond)), Entry: f.Entry}
}

// family reports what kind of addresses a network's are, in words.
func family(network netip.Prefix) string {
	if network.Addr().Is6() {
		return "IPv6"
	}
	return "IPv4"
}
