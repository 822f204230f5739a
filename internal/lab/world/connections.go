// The connections of a lab as its load balancers' tables have them, and as the servers' TCP has them.
package world

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Entries is what a load balancer's tables hold, also of connections that have ended.
func (t *Trial) Entries(lb string) ([]api.Connection, error) {
	query := api.ConnectionQuery{Limit: api.MaxConnections}
	var all api.Connections
	err := t.Client(lb).Get(t.Context, api.PathConnections+"?"+query.Values().Encode(), &all)
	return all.Connections, err
}

// IsOpen tells whether the client has not said that the connection is over.
func IsOpen(one api.Connection) bool { return one.State == "new" || one.State == "open" }

// Tables are the entries of open connections, by load balancer and client.
func (t *Trial) Tables(lbs ...string) (map[string]map[netip.AddrPort]api.Connection, error) {
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
func (t *Trial) Connections() (map[netip.AddrPort]servedConnection, error) {
	all := map[netip.AddrPort]servedConnection{}
	target := netip.MustParseAddrPort(t.Target())
	for i := range t.Topology.Servers {
		name := ServerName(i + 1)
		sockets, err := t.Space(name).Established()
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

// Listed tells why the tables do not hold the open connections exactly: each in one table, with the server that has it. Those in
// silent need not be there.
func (t *Trial) Listed(silent map[netip.AddrPort]bool, lbs ...string) error {
	tables, err := t.Tables(lbs...)
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

// Dial opens a connection to the first service from one of the clients' addresses, without the traffic's client.
func (t *Trial) Dial(source string) (connection net.Conn) {
	script.Check(t.Space(ClientNode).Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: Stall}
		connection, err = dialer.DialContext(t.Context, "tcp", t.Target())
		return err
	}))
	return connection
}

// Verdicts adds up what several load balancers counted by their verdicts.
func (t *Trial) Verdicts(lbs ...string) (map[string]uint64, error) {
	sum := map[string]uint64{}
	for _, lb := range lbs {
		counters, err := t.Client(lb).Counters(t.Context)
		if err != nil {
			return nil, err
		}
		for verdict, packets := range counters {
			sum[verdict] += packets
		}
	}
	return sum, nil
}

// OpenFrames opens the frames of a node's interface.
func (l *Lab) OpenFrames(node, name string) (socket *frames.Socket, err error) {
	err = l.Space(node).Do(func() error {
		socket, err = frames.Open(name)
		return err
	})
	return socket, err
}
