// The connections of a lab as its load balancers' tables have them, and as the servers' TCP has them.
package world

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Tables compares the connections of load balancers and servers.
type Tables struct {
	pool    *Pool
	rollout *Rollout
}

// Entries is what a load balancer's tables hold, also of connections that have ended.
func (t *Tables) Entries(lb string) ([]api.Connection, error) {
	query := api.ConnectionQuery{Limit: api.MaxConnections}
	var all api.Connections
	err := t.rollout.Client(lb).Get(t.rollout.lab.Context, api.PathConnections+"?"+query.Values().Encode(), &all)
	return all.Connections, err
}

// IsOpen reports whether the client has not ended the connection.
func IsOpen(one api.Connection) bool { return one.State == "new" || one.State == "open" }

// Open are the entries of open connections, by load balancer and client.
func (t *Tables) Open(lbs ...string) (map[string]map[netip.AddrPort]api.Connection, error) {
	all := map[string]map[netip.AddrPort]api.Connection{}
	for _, lb := range lbs {
		found, err := t.Entries(lb)
		if err != nil {
			return nil, err
		}
		all[lb] = map[netip.AddrPort]api.Connection{}
		for _, one := range found {
			if IsOpen(one) {
				all[lb][one.Client] = one
			}
		}
	}
	return all, nil
}

// servedConnection is an open connection as its server has it.
type servedConnection struct {
	netspace.TCPSocket
	Server string
}

// Connections are those that the servers have with clients of the first service, by client.
func (t *Tables) Connections() (map[netip.AddrPort]servedConnection, error) {
	all := map[netip.AddrPort]servedConnection{}
	target := netip.MustParseAddrPort(t.pool.Target())
	for _, name := range names(ServerName, len(t.rollout.network.Servers)) {
		sockets, err := t.rollout.lab.Space(name).Established()
		if err != nil {
			return nil, err
		}
		for _, socket := range sockets {
			if socket.Local == target {
				all[socket.Remote] = servedConnection{socket, name}
			}
		}
	}
	return all, nil
}

// Listed is why the tables do not hold the open connections exactly: each in one table, with the server that has it.
// Those in silent need not be there.
func (t *Tables) Listed(silent map[netip.AddrPort]bool, lbs ...string) error {
	tables, err := t.Open(lbs...)
	if err != nil {
		return err
	}
	have, err := t.Connections()
	if err != nil {
		return err
	}
	rest := maps.Clone(have)
	for _, lb := range lbs {
		for client, one := range tables[lb] {
			switch want, known := rest[client]; {
			case have[client].Server == "":
				return fmt.Errorf("%s lists %v, which no server has", lb, client)
			case !known:
				return fmt.Errorf("%s lists %v, which another lists too", lb, client)
			case want.Server != one.Server:
				return fmt.Errorf("%s lists %v as a connection of %s, %s has it", lb, client, one.Server, want.Server)
			}
			delete(rest, client)
		}
	}
	for client, one := range rest {
		if !silent[client] {
			return fmt.Errorf("no table lists %v of %s, nor %d others", client, one.Server, len(rest)-1)
		}
	}
	return nil
}
