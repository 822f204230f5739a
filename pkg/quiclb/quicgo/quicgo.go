// Package quicgo makes servers with quic-go issue connection ids by which Ballast load balancers find them.
//
// A service's file belongs to one Transport of a host, as its key of stateless resets does: of two, each would tell who sends it an id of the other's how to
// end that connection. Where an application listens at several ports, take one Transport for all ports of a service (behind one socket), or else a service
// for each port.
package quicgo

import (
	"net"

	"github.com/quic-go/quic-go"

	"github.com/ballast-lb/ballast/pkg/quiclb"
)

// Transport is a transport on conn whose connection ids name this server. It can serve several listeners, as any quic.Transport; settings that it leaves
// alone are the caller's.
func Transport(conn net.PacketConn, g *quiclb.Generator) *quic.Transport {
	reset, token := quic.StatelessResetKey(g.StatelessResetKey()), quic.TokenGeneratorKey(g.TokenKey())
	return &quic.Transport{Conn: conn, ConnectionIDGenerator: generator{g}, StatelessResetKey: &reset, TokenGeneratorKey: &token}
}

// generator is a quic.ConnectionIDGenerator.
type generator struct{ ids *quiclb.Generator }

func (g generator) GenerateConnectionID() (quic.ConnectionID, error) {
	id, err := g.ids.New()
	if err != nil {
		return quic.ConnectionID{}, err
	}
	return quic.ConnectionIDFromBytes(id), nil
}

func (g generator) ConnectionIDLen() int { return g.ids.Length() }
