// Package hub serves the streams of a fleet's nodes: it sends them the desired state and weights, and takes their reports. Controllers run
// one, and a load balancer that runs by a file, for its agents.
//
// It has three parts, which Hub wires:
//   - streams serves connections. It sees the rest by the five methods of broker.
//   - Topics are what nodes are sent. A topic has its value, its messages and the nodes that have not the newest.
//   - Nodes are who is connected and who was, with what they report.
//
// Locks, in the order in which they are taken: Nodes.mutex, Topics.setting, Topics.mutex. Each topic is under Topics.mutex, because these hold
// across topics:
//   - A new stream is sent everything first and then what changes: it joins all topics in one moment, in which it becomes a peer, too
//     (TestANodeIsToldEverythingFirstAndThenWhatChanges).
//   - Revocations come before everything else (TestNodesAreToldWhoIsRevokedBeforeAnythingElse), and state before weights
//     (TestStateIsNeverDelayedByWeights).
//   - A load balancer's addresses are on the agents' list before it is sent state (TestAgentsAreToldWhereTunnelsComeFrom).
//   - A stream that was replaced changes no addresses (TestAStreamThatWasReplacedSaysNothingOfAddresses).
//
// admission and call have locks of their own, and take no other.
package hub

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Joining is what those are served who have no certificate: a protocol of their own, and nothing else.
type Joining struct {
	Protocol string
	Serve    func(*tls.Conn) // the connection is closed after it
}

// Serve answers nodes and ctl until ctx ends, and closes the listener. Whom it refuses refusals counts. Streams end with ctx, and as soon as
// the peer's certificate is revoked. joining nil: who has no certificate is refused.
func Serve(ctx context.Context, listener net.Listener, credentials *pki.Credentials, refusals *Refusals, handler http.Handler, joining *Joining) error {
	config := credentials.Server()
	refusals.watch(config)
	config.NextProtos = []string{"h2", "http/1.1"}
	server := &http.Server{
		Handler: refuseRevoked(credentials, handler), TLSConfig: config, ReadHeaderTimeout: api.HeaderTimeout, IdleTimeout: api.IdleTimeout, Protocols: new(http.Protocols),
		HTTP2:       api.StreamHTTP2(),
		BaseContext: func(net.Listener) context.Context { return refusals.into(ctx) },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
		ErrorLog:    refusals.errorLog(),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	if joining != nil {
		joining.admit(server, credentials)
	}
	err := api.ServeUntil(ctx, server, func() error { return server.ServeTLS(listener, "", "") })
	listener.Close() // also where it did not come to serving
	return err
}

// admit has a server speak the protocol with those who ask TLS for that alone. net/http gives their connections to no handler.
func (j *Joining) admit(server *http.Server, credentials *pki.Credentials) {
	ours, others := credentials.Joining(j.Protocol), server.TLSConfig.GetConfigForClient
	server.TLSConfig.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, []string{j.Protocol}) {
			return ours, nil
		}
		return others(hello)
	}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		j.Protocol: func(_ *http.Server, c *tls.Conn, _ http.Handler) {
			defer c.Close()
			j.Serve(c)
		},
	}
}
