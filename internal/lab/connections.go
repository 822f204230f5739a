// The connections of a lab as its load balancers' tables have them, and as the servers' TCP has them.
package lab

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
)

// entries is what a load balancer's tables hold, also of connections that have ended.
func (t *trial) entries(lb string) ([]api.Connection, error) {
	query := api.ConnectionQuery{Limit: api.MaxConnections}
	var all api.Connections
	err := t.client(lb).Get(t.ctx, api.PathConnections+"?"+query.Values().Encode(), &all)
	return all.Connections, err
}

// isOpen tells whether the client has not said that the connection is over.
func isOpen(one api.Connection) bool { return one.State == "new" || one.State == "open" }

// tables are the entries of open connections, by load balancer and client.
func (t *trial) tables(lbs ...string) (map[string]map[netip.AddrPort]api.Connection, error) {
	all := map[string]map[netip.AddrPort]api.Connection{}
	for _, lb := range lbs {
		found, err := t.entries(lb)
		if err != nil {
			return nil, err
		}
		all[lb] = map[netip.AddrPort]api.Connection{}
		for _, one := range found {
			if isOpen(one) {
				all[lb][one.Client] = one
			}
		}
	}
	return all, nil
}

// servedConnection is an open connection as its server has it.
type servedConnection struct {
	netspace.TCPSocket
	server string
}

// connections are those that the servers have with clients of the first service, by client.
func (t *trial) connections() (map[netip.AddrPort]servedConnection, error) {
	all := map[netip.AddrPort]servedConnection{}
	target := netip.MustParseAddrPort(t.target())
	for i := range t.topo.Servers {
		name := serverName(i + 1)
		sockets, err := t.space(name).Established()
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

// listed tells why the tables do not hold the open connections exactly: each in one table, with the server that has it. Those in
// silent need not be there.
func (t *trial) listed(silent map[netip.AddrPort]bool, lbs ...string) error {
	tables, err := t.tables(lbs...)
	if err != nil {
		return err
	}
	have, err := t.connections()
	if err != nil {
		return err
	}
	rest := maps.Clone(have)
	for _, lb := range lbs {
		for client, one := range tables[lb] {
			switch want, known := rest[client]; {
			case have[client].server == "":
				return fmt.Errorf("%s lists %v, which no server has", lb, client)
			case !known:
				return fmt.Errorf("%s lists %v, which another lists too", lb, client)
			case want.server != one.Server:
				return fmt.Errorf("%s lists %v as a connection of %s, %s has it", lb, client, one.Server, want.server)
			}
			delete(rest, client)
		}
	}
	for client, one := range rest {
		if !silent[client] {
			return fmt.Errorf("no table lists %v of %s, nor %d others", client, one.server, len(rest)-1)
		}
	}
	return nil
}

// dial opens a connection to the first service from one of the clients' addresses, without the traffic's client.
func (t *trial) dial(source string) (connection net.Conn, err error) {
	err = t.space(clientNode).Do(func() error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: stall}
		connection, err = dialer.DialContext(t.ctx, "tcp", t.target())
		return err
	})
	return connection, err
}

// verdicts adds up what several load balancers counted by their verdicts.
func (t *trial) verdicts(lbs ...string) (map[string]uint64, error) {
	sum := map[string]uint64{}
	for _, lb := range lbs {
		counters, err := t.client(lb).Counters(t.ctx)
		if err != nil {
			return nil, err
		}
		for verdict, packets := range counters {
			sum[verdict] += packets
		}
	}
	return sum, nil
}
