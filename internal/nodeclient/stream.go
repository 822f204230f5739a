// Package nodeclient is the nodes' side of the control plane: streams to controllers.
package nodeclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// Implementation constants of a node's streams.
const (
	dialTimeout    = 2 * time.Second // not as long as lost SYNs take: the way may come back any time
	rejoinMin      = 100 * time.Millisecond
	rejoinMax      = 2 * time.Second
	outboxMessages = 16      // reports that wait for a controller that does not read; the oldest are dropped
	stateBytesMax  = 1 << 28 // of one message from a controller
)

// Options say whom a node joins and what it does with what it is told. The callbacks of one controller come in order; those of
// several come at the same time.
type Options struct {
	Controllers []string    // host:port of every controller
	TLS         *tls.Config // of the node; nil: without TLS, for tests
	Hello       func() *ballastv1.Hello
	OnState     func(controller string, state *ballastv1.State)
	OnWeights   func(service string, update *follow.Update)
	OnChecks    func(controller string, services []string)
	OnSources   func(controller string, sources *ballastv1.TunnelSources)
	OnLeft      func(controller string) // its stream has ended
	// Dial connects, below TLS; nil: as usual.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Joined keeps one stream to each controller until its context ends. It is safe for concurrent use.
type Joined struct {
	options Options
	running sync.WaitGroup

	mutex   sync.Mutex
	streams map[string]*outbox // of the controllers that are connected
}

// Join starts joining all controllers, and joins them again whenever their streams end.
func Join(ctx context.Context, o Options) *Joined {
	j := &Joined{options: o, streams: map[string]*outbox{}}
	for _, controller := range o.Controllers {
		j.running.Go(func() { j.keep(ctx, controller) })
	}
	return j
}

// Wait returns when the context of Join has ended and no callback runs any more.
func (j *Joined) Wait() { j.running.Wait() }

// Send gives a report to every controller that is connected. It never waits: a controller that does not read loses the oldest.
func (j *Joined) Send(message *ballastv1.FromNode) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	for _, stream := range j.streams {
		stream.put(message)
	}
}

// Rejoin ends all streams and begins them anew, so that every controller tells its complete state again.
func (j *Joined) Rejoin() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	for _, stream := range j.streams {
		stream.end()
	}
}

// Connected returns the controllers that there is a stream to, in order.
func (j *Joined) Connected() (controllers []string) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	for controller := range j.streams {
		controllers = append(controllers, controller)
	}
	slices.Sort(controllers)
	return controllers
}

func (j *Joined) keep(ctx context.Context, controller string) {
	transport := nodeTransport(j.options.TLS)
	if j.options.Dial != nil {
		transport.DialContext = j.options.Dial
	}
	defer transport.CloseIdleConnections()
	scheme := "https://"
	if j.options.TLS == nil {
		scheme = "http://"
	}
	client := ballastv1connect.NewControlClient(&http.Client{Transport: transport}, scheme+controller, connect.WithGRPC(),
		connect.WithReadMaxBytes(stateBytesMax))
	wait, said := rejoinMin, ""
	for ctx.Err() == nil {
		welcomed, err := j.converse(ctx, controller, client)
		if ctx.Err() != nil {
			return
		}
		if welcomed {
			wait, said = rejoinMin, ""
			j.options.Log.Warn("controller lost, the last state goes on", "controller", controller, "error", err)
		} else if text := fmt.Sprint(err); text != said { // once for every reason
			said = text
			j.options.Log.Warn("controller not joined", "controller", controller, "error", err)
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
		wait = min(2*wait, rejoinMax)
	}
}

func nodeTransport(config *tls.Config) *http.Transport {
	transport := &http.Transport{
		TLSClientConfig: config.Clone(), TLSHandshakeTimeout: api.StreamDead, Protocols: new(http.Protocols),
		HTTP2:       api.StreamHTTP2(),
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}
	transport.Protocols.SetHTTP2(config != nil)
	transport.Protocols.SetUnencryptedHTTP2(config == nil)
	return transport
}

// converse is one stream from its beginning to its end.
func (j *Joined) converse(ctx context.Context, controller string, client ballastv1connect.ControlClient) (welcomed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Join(ctx)
	if err != nil {
		return false, err
	}
	defer stream.CloseResponse()
	defer stream.CloseRequest()
	// net/http notices the end of the context only when the request has ended, too.
	defer context.AfterFunc(ctx, func() { stream.CloseRequest() })()
	if err := stream.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: j.options.Hello()}}); err != nil {
		return false, reason(stream, err)
	}
	first, err := stream.Receive()
	if err != nil {
		return false, err
	}
	welcome := first.GetWelcome()
	if welcome == nil {
		return false, errors.New("it did not welcome us: is this a controller of Ballast?")
	}
	j.options.Log.Info("joined", "controller", controller, "name", welcome.Controller, "version", welcome.Version)

	out := newOutbox(cancel)
	j.mutex.Lock()
	j.streams[controller] = out
	j.mutex.Unlock()
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		out.drain(ctx, stream.Send)
	}()
	err = j.receive(controller, stream)
	j.mutex.Lock()
	delete(j.streams, controller)
	j.mutex.Unlock()
	cancel()
	<-sending
	j.options.OnLeft(controller)
	return true, err
}

// reason is why the controller ended a stream: sending tells only that it did.
func reason(stream *connect.BidiStreamForClientSimple[ballastv1.FromNode, ballastv1.ToNode], err error) error {
	if errors.Is(err, io.EOF) {
		if _, why := stream.Receive(); why != nil {
			return why
		}
	}
	return err
}

func (j *Joined) receive(controller string, stream *connect.BidiStreamForClientSimple[ballastv1.FromNode, ballastv1.ToNode]) error {
	for {
		message, err := stream.Receive()
		if err != nil {
			return err
		}
		switch m := message.Message.(type) {
		case *ballastv1.ToNode_State:
			j.options.OnState(controller, m.State)
		case *ballastv1.ToNode_Weights:
			if update := api.WeightsFromProto(m.Weights); update != nil {
				j.options.OnWeights(m.Weights.Service, update)
			}
		case *ballastv1.ToNode_Checks:
			j.options.OnChecks(controller, m.Checks.Services)
		case *ballastv1.ToNode_Sources:
			j.options.OnSources(controller, m.Sources)
		}
	}
}

// outbox holds the last few reports for one controller.
type outbox struct {
	messages chan *ballastv1.FromNode
	end      func() // of the stream
}

func newOutbox(end func()) *outbox {
	return &outbox{messages: make(chan *ballastv1.FromNode, outboxMessages), end: end}
}

func (o *outbox) put(message *ballastv1.FromNode) {
	for {
		select {
		case o.messages <- message:
			return
		default:
		}
		select {
		case <-o.messages:
		default:
		}
	}
}

func (o *outbox) drain(ctx context.Context, send func(*ballastv1.FromNode) error) {
	for {
		select {
		case message := <-o.messages:
			if send(message) != nil {
				return // the receiving side learns why
			}
		case <-ctx.Done():
			return
		}
	}
}
