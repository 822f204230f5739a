// An agent among the peers: it reports, and leaves unread what it is told.
package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

// unread is a message that is received and not decoded: a thousand agents that each decode a state with all thousand of them are no
// work for one machine, and on their own machines keep no load balancer waiting.
type unread struct{}

type unreadCodec struct{}

func (unreadCodec) Name() string { return "proto" }

func (unreadCodec) Marshal(message any) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (unreadCodec) Unmarshal([]byte, any) error { return nil }

type agentStream = connect.BidiStreamForClient[ballastv1.FromNode, unread]

// startAgent has one join, and report queues of random lengths: every weight may change every time.
func (c *company) startAgent(ctx context.Context, i int, joined chan<- struct{}) error {
	credentials, hello, err := c.credentials(serverName(i), pki.Agent)
	if err != nil {
		return err
	}
	var first sync.Once
	c.running.Go(func() {
		for ctx.Err() == nil {
			err := c.beAgent(ctx, credentials.Client(), hello(), func() { first.Do(func() { joined <- struct{}{} }) })
			c.lose(ctx, fmt.Errorf("agent %s: %w", serverName(i), err))
			wait(ctx, rand.N(rejoinMax)) // not all at once
		}
	})
	return nil
}

// lose counts a stream that has ended before its time.
func (c *company) lose(ctx context.Context, err error) {
	if ctx.Err() == nil {
		c.lost.Add(1)
		c.lastLoss.Store(&err)
	}
}

// beAgent is one stream from its beginning to its end.
func (c *company) beAgent(ctx context.Context, config *tls.Config, hello *ballastv1.Hello, welcomed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, done, err := c.joinAsAgent(ctx, config, hello)
	if err != nil {
		return err
	}
	defer done()
	welcomed()
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer cancel()
	reporting.Go(func() {
		c.repeat(ctx, c.fleet.Interval, func() {
			queue := rand.Float32() * 100
			report := &ballastv1.LoadReport{Services: []*ballastv1.ServiceLoad{{Service: followedName, Connections: uint32(queue), MeanQueue: queue}}}
			if stream.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: report}}) == nil {
				c.reports.Add(1)
			}
		})
		stream.CloseRequest()
	})
	for err == nil {
		_, err = stream.Receive()
	}
	return err
}

// joinAsAgent returns a stream that has been welcomed and told the state.
func (c *company) joinAsAgent(ctx context.Context, config *tls.Config, hello *ballastv1.Hello) (stream *agentStream, done func(), err error) {
	transport := &http.Transport{TLSClientConfig: config, DialContext: dial(&c.agentTraffic), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	client := connect.NewClient[ballastv1.FromNode, unread](&http.Client{Transport: transport}, "https://"+c.fleet.Controller+ballastv1connect.ControlJoinProcedure,
		connect.WithGRPC(), connect.WithCodec(unreadCodec{}))
	stream = client.CallBidiStream(ctx)
	err = stream.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: hello}})
	for range 2 { // the welcome, the state
		if err == nil {
			_, err = stream.Receive()
		}
	}
	if err != nil {
		transport.CloseIdleConnections()
		return nil, nil, err
	}
	return stream, func() { stream.CloseResponse(); transport.CloseIdleConnections() }, nil
}
