package daemon

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

// lookChunk is how many blocks are looked at before others may have the tables again: a few milliseconds.
const lookChunk = 512

// connectionOrders are by what connections can be sorted, the first first.
var connectionOrders = map[string]func(a, b *connections.Connection) int{
	"packets": func(a, b *connections.Connection) int { return cmp.Compare(b.Packets, a.Packets) },
	"bytes":   func(a, b *connections.Connection) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"age":     func(a, b *connections.Connection) int { return cmp.Compare(b.First, a.First) },
	"idle":    func(a, b *connections.Connection) int { return cmp.Compare(b.Last, a.Last) },
}

// connectionsLook goes through tables for one request.
type connectionsLook struct {
	query  api.ConnectionQuery
	state  conntable.State // StateNone: any
	table  *serviceTable
	server map[uint16]bool // ids of the server asked for in table; nil: any
	order  func(a, b *connections.Connection) int

	matched uint64
	found   []foundConnection
	worst   *connections.Connection // of those that would be in the answer; nil: all would
	counts  []api.ConnectionCounts
}

type foundConnection struct {
	connections.Connection
	table *serviceTable
}

// connectionsAsked answers api.PathConnections.
func (lb *LB) connectionsAsked(r *http.Request) (any, error) {
	query, err := api.ParseConnectionQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	look, err := newConnectionsLook(query)
	if err != nil {
		return nil, err
	}
	tables, elsewhere, err := lb.tablesAsked(&query)
	if err != nil {
		return nil, err
	}
	answer := api.Connections{Node: lb.name, Tables: []api.ConnectionTable{}, SecondTier: elsewhere, Connections: []api.Connection{}}
	for _, t := range tables {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		occupancy := lb.lookAt(look, t)
		answer.Tables = append(answer.Tables, look.summary(occupancy))
	}
	look.prune()
	answer.Matched = look.matched
	for i := range look.found {
		answer.Connections = append(answer.Connections, look.found[i].told())
	}
	return answer, nil
}

func newConnectionsLook(query api.ConnectionQuery) (*connectionsLook, error) {
	look := &connectionsLook{query: query, order: connectionOrders[cmp.Or(query.Sort, "packets")]}
	if look.order == nil {
		return nil, api.BadRequest("connections cannot be sorted by %q: use packets, bytes, age or idle", query.Sort)
	}
	if query.Limit < 0 || query.Limit > api.MaxConnections {
		return nil, api.BadRequest("a list of %d connections: ask for 1 to %d", query.Limit, api.MaxConnections)
	}
	look.query.Limit = cmp.Or(query.Limit, api.DefaultConnections)
	if query.State != "" {
		state := slices.Index(conntable.States[:], query.State)
		if state <= int(conntable.StateNone) {
			return nil, api.BadRequest("connections have no state %q: use new, open, finished or reset", query.State)
		}
		look.state = conntable.State(state)
	}
	return look, nil
}

// tablesAsked returns the tables that a query is about, and the services of all that it leaves to the second tier.
func (lb *LB) tablesAsked(query *api.ConnectionQuery) (tables []*serviceTable, elsewhere []string, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if query.Service != "" {
		t, err := lb.tableOf(query.Service)
		if err != nil {
			return nil, nil, err
		}
		tables = []*serviceTable{t}
	} else {
		tables, elsewhere = lb.tablesNow(time.Now()), lb.inSecondTier()
	}
	if query.Server == "" {
		return tables, elsewhere, nil
	}
	named := slices.DeleteFunc(slices.Clone(tables), func(t *serviceTable) bool { return len(t.ids(query.Server)) == 0 })
	switch {
	case len(named) > 0:
		return named, elsewhere, nil
	case len(elsewhere) > 0:
		return nil, nil, api.BadRequest("this node is of the first tier: connections of service %s are in the tables of the second: ask its nodes", strings.Join(elsewhere, ", "))
	}
	return nil, nil, api.BadRequest("no service with a table has a server %q: see `ballast ctl servers`", query.Server)
}

// inSecondTier names the services whose tables nodes of the second tier have. Callers hold mu.
func (lb *LB) inSecondTier() (services []string) {
	for i := range lb.node.Running.Services {
		if s := &lb.node.Running.Services[i]; lb.sendsToNodes(s) {
			services = append(services, s.Name)
		}
	}
	slices.Sort(services)
	return services
}

// tableOf returns a service's table. Callers hold mu.
func (lb *LB) tableOf(service string) (*serviceTable, error) {
	s := lb.node.Running.Service(service)
	if s == nil {
		return nil, api.BadRequest("there is no service %q: see `ballast ctl services`", service)
	}
	if s.Affinity != model.AffinityTable {
		return nil, api.BadRequest("service %s has affinity %s, and no table of connections: give it affinity table", service, s.Affinity)
	}
	for _, t := range lb.tablesNow(time.Now()) {
		if t.service == service {
			return t, nil
		}
	}
	if lb.sendsToNodes(s) {
		return nil, api.BadRequest("this node is of the first tier: the connections of service %s are in the tables of the second: ask its nodes", service)
	}
	return nil, api.BadRequest("service %s has no table yet: see `ballast ctl status`", service)
}

// ids are those of the servers of a name: one that was removed may have the name of one that came.
func (t *serviceTable) ids(server string) map[uint16]bool {
	ids := map[uint16]bool{}
	for id, name := range t.servers {
		if name == server {
			ids[id] = true
		}
	}
	return ids
}

// lookAt goes through a table. Where the table is replaced meanwhile, the rest is left out.
func (lb *LB) lookAt(look *connectionsLook, t *serviceTable) (occupancy connections.Occupancy) {
	look.table, look.counts, look.server = t, nil, nil
	if look.query.Server != "" {
		look.server = t.ids(look.query.Server)
	}
	lb.flushCounts()
	part := func(block uint32) bool {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		if !lb.isThere(t) {
			return false
		}
		if block == 0 {
			occupancy = lb.path.Connections().Occupancy(t.table)
		}
		lb.path.Connections().Each(t.table, block, lookChunk, look.visit)
		return true
	}
	for block := uint32(0); block < t.table.Blocks && part(block); block += lookChunk {
	}
	return occupancy
}

// isThere reports whether packets still see the table. Callers hold mu.
func (lb *LB) isThere(t *serviceTable) bool {
	return slices.ContainsFunc(lb.tablesNow(time.Now()), func(now *serviceTable) bool {
		return now.service == t.service && now.number == t.number && now.table == t.table
	})
}

func (l *connectionsLook) visit(c *connections.Connection) {
	if int(c.Server) >= len(l.counts) {
		l.counts = append(l.counts, make([]api.ConnectionCounts, int(c.Server)+1-len(l.counts))...)
	}
	count(&l.counts[c.Server], c)
	if !l.matches(c) {
		return
	}
	l.matched++
	if l.worst != nil && l.order(l.worst, c) <= 0 {
		return
	}
	l.found = append(l.found, foundConnection{*c, l.table})
	if len(l.found) >= 2*l.query.Limit {
		l.prune()
	}
}

func (l *connectionsLook) matches(c *connections.Connection) bool {
	q := &l.query
	return (l.state == conntable.StateNone || c.State == l.state) && (l.server == nil || l.server[c.Server]) && (c.Suspect || !q.Suspects) &&
		uint64(c.Packets) >= q.MinPackets && c.Bytes >= q.MinBytes && c.First >= q.MinAge.Duration() && c.Last >= q.MinIdle.Duration() &&
		(!q.Client.IsValid() || q.Client.Contains(c.Client.Addr()))
}

// prune keeps the connections that are first in the order.
func (l *connectionsLook) prune() {
	slices.SortStableFunc(l.found, func(a, b foundConnection) int {
		return cmp.Or(l.order(&a.Connection, &b.Connection), strings.Compare(a.table.service, b.table.service), cmp.Compare(a.Entry, b.Entry))
	})
	if len(l.found) >= l.query.Limit {
		l.found = l.found[:l.query.Limit]
		l.worst = new(l.found[l.query.Limit-1].Connection)
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

// summary is the table that was looked at last, as a whole.
func (l *connectionsLook) summary(o connections.Occupancy) api.ConnectionTable {
	t := api.ConnectionTable{Service: l.table.service, Entries: o.Entries, Used: o.Used(), Free: o.Free, Ended: o.Ended, Servers: []api.ServerConnections{}}
	for id, counts := range l.counts {
		if counts == (api.ConnectionCounts{}) {
			continue
		}
		t.Servers = append(t.Servers, api.ServerConnections{Server: l.table.name(uint16(id)), ID: uint16(id), ConnectionCounts: counts})
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
func (t *serviceTable) name(id uint16) string {
	return cmp.Or(t.servers[id], fmt.Sprintf("(id %d)", id))
}

func (f *foundConnection) told() api.Connection {
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
