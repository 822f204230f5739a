// Package nodeclient is the nodes' side of the control plane: streams to controllers, and what a node takes of what they say.
package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants of a node's streams.
const (
	dialTimeout    = 2 * time.Second // not as long as lost SYNs take: the way may come back any time
	rejoinMin      = 100 * time.Millisecond
	rejoinMax      = 2 * time.Second
	outboxMessages = 16      // reports that wait for a controller that does not read; the oldest are dropped
	stateBytesMax  = 1 << 28 // of one message from a controller
)

// Options say whom a node joins and what it does with what controllers send; nil: it ignores that. The callbacks of one controller come in
// order, but for OnReplicas, which is not called with a ring of which a newer one has come; those of several come at the same time.
type Options struct {
	Controllers   []string         // host:port of every controller
	Credentials   *pki.Credentials // of the node; nil: without TLS, for tests
	Peers         []pki.Role       // whom it joins besides controllers
	Hello         func() *ballastv1.Hello
	OnState       func(controller string, state *ballastv1.State)
	OnWeights     func(service string, update *follow.Update)
	OnOpen        func(service string, counts *follow.Counts)
	OnLoads       func(service string, loads *follow.Loads)
	OnChecks      func(controller string, services []string)
	OnSources     func(controller string, sources *ballastv1.TunnelSources)
	OnReplicas    func(controller string, view *ballastv1.ReplicaView)
	OnRevocations func(controller string, revocations *ballastv1.Revocations)
	OnQuestion    func(controller string, question *ballastv1.Question)
	OnLeft        func(controller string) // its stream has ended
	// Dial connects, below TLS; nil: as usual.
	Dial pki.DialFunc
	Log  *slog.Logger
}

// Streams are a node's streams to its controllers. They are safe for concurrent use.
type Streams struct {
	options Options

	mutex   sync.Mutex
	streams map[string]*outbox // of the controllers that are connected
	unable  map[string]bool    // those of them that judge nobody
	missing map[string]*missed // of the others
}

// New returns streams that begin with Run.
func New(o Options) *Streams {
	return &Streams{options: o, streams: map[string]*outbox{}, unable: map[string]bool{}, missing: map[string]*missed{}}
}

// Run keeps a stream to every controller until ctx ends. When it returns, no callback runs any more.
func (s *Streams) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, controller := range s.options.Controllers {
		running.Go(func() { s.keep(ctx, controller) })
	}
	running.Wait()
}

// Send gives a report to every controller that is connected. It never waits: a controller that does not read loses the oldest.
func (s *Streams) Send(message *ballastv1.FromNode) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range s.streams {
		stream.put(message)
	}
}

// Answer gives a message to one controller, if it is still connected.
func (s *Streams) Answer(controller string, message *ballastv1.FromNode) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if stream := s.streams[controller]; stream != nil {
		stream.put(message)
	}
}

// Rejoin ends all streams and begins them anew, so that every controller tells its complete state again.
func (s *Streams) Rejoin() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range s.streams {
		stream.end()
	}
}

// Connected returns the controllers that there is a stream to, in order.
func (s *Streams) Connected() (controllers []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for controller := range s.streams {
		controllers = append(controllers, controller)
	}
	slices.Sort(controllers)
	return controllers
}

// Judged reports whether a controller is connected that judges servers and is not silent.
func (s *Streams) Judged(now time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for controller, stream := range s.streams {
		if !s.unable[controller] && !stream.silent(now) {
			return true
		}
	}
	return false
}

// Silence is since when no controller that is connected has said anything; zero: one has just now, none is connected, or it is of a
// version that does not say every second that it works.
func (s *Streams) Silence(now time.Time) (since time.Time) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stream := range s.streams {
		if !stream.silent(now) {
			return time.Time{}
		}
		if stream.heard.After(since) {
			since = stream.heard
		}
	}
	return since
}

// Problem is that no controller is connected, and why, as far as it is known; empty: one is. goesOn: the node has a state to go on with.
func (s *Streams) Problem(goesOn bool) string {
	problem := NoController
	if goesOn {
		problem += ": the last state goes on"
	}
	return s.Unconnected(problem)
}

// Unconnected is a problem with what is known of why no controller is connected; empty: one is.
func (s *Streams) Unconnected(problem string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	now, reasons := time.Now(), []string{}
	for controller, stream := range s.streams {
		if !stream.silent(now) {
			return ""
		}
		reasons = append(reasons, fmt.Sprintf("%s: no word for %v", controller, now.Sub(stream.heard).Truncate(time.Second)))
	}
	for controller, m := range s.missing {
		reasons = append(reasons, controller+": "+m.String())
	}
	if len(reasons) == 0 {
		return problem
	}
	slices.Sort(reasons)
	return problem + " (" + strings.Join(reasons, "; ") + ")"
}

// missed is why there is no stream to a controller.
type missed struct {
	last   failure
	answer failure // what the controller itself said last, if that was not it; no error: nothing, since a stream stood
}

type failure struct {
	error
	at time.Time
}

func (m *missed) String() string {
	text := plain(m.last.error)
	if m.answer.error != nil {
		text += fmt.Sprintf("; at %s it reported: %s", m.answer.at.UTC().Format(time.RFC3339), plain(m.answer.error))
	}
	return text
}

// refusesCertificate reports whether the other side's TLS ended the connection: it says no more than that. HTTP/2 and connect leave its text alone.
func refusesCertificate(err error) bool { return strings.Contains(err.Error(), "remote error: tls: ") }

// plain is an error as operators are told it.
func plain(err error) string {
	if refusesCertificate(err) {
		return fmt.Sprintf("it refuses this node's certificate (%s): is its clock right, and ours? Is its ca.crt the same? `ballast ctl node list` there", api.TextOf(err))
	}
	return api.TextOf(err)
}

// miss keeps why a controller has ended a stream or did not begin one. What it answered says more than what the network does later: one
// that refuses a certificate says so once, and its TLS little from then on.
func (s *Streams) miss(controller string, why error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	before, m := s.missing[controller], &missed{last: failure{why, time.Now()}}
	switch {
	case before == nil || answers(why):
	case answers(before.last.error):
		m.answer = before.last
	default:
		m.answer = before.answer
	}
	s.missing[controller] = m
}

// answers reports whether an error is the controller's, and not the network's.
func answers(err error) bool { return connect.IsWireError(err) || refusesCertificate(err) }

func (s *Streams) keep(ctx context.Context, controller string) {
	transport := s.options.transport()
	defer transport.CloseIdleConnections()
	scheme := "https://"
	if s.options.Credentials == nil {
		scheme = "http://"
	}
	client := ballastv1connect.NewControlClient(&http.Client{Transport: transport}, scheme+controller, connect.WithGRPC(),
		connect.WithReadMaxBytes(stateBytesMax))
	wait, said := rejoinMin, ""
	for ctx.Err() == nil {
		welcomed, err := s.converse(ctx, controller, client)
		if ctx.Err() != nil {
			return
		}
		s.miss(controller, err)
		if welcomed {
			wait, said = rejoinMin, ""
			s.options.Log.Warn("controller lost, the last state goes on", "controller", controller, "error", err)
		} else if text := fmt.Sprint(err); text != said { // once for every reason
			said = text
			s.options.Log.Warn("controller not joined", "controller", controller, "error", err)
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
		wait = min(2*wait, rejoinMax)
	}
}

func (o *Options) transport() *http.Transport {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := &http.Transport{Protocols: new(http.Protocols), HTTP2: api.StreamHTTP2(), DialContext: dial}
	if o.Credentials == nil {
		transport.Protocols.SetUnencryptedHTTP2(true)
		return transport
	}
	transport.Protocols.SetHTTP2(true)
	secure := o.Credentials.Dialer(o.Credentials.Client(o.Peers...), dial)
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout+api.StreamDead)
		defer cancel()
		return secure(ctx, network, address)
	}
	return transport
}

// converse is one stream from its beginning to its end.
func (s *Streams) converse(ctx context.Context, controller string, client ballastv1connect.ControlClient) (welcomed bool, err error) {
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
	hello := s.options.Hello()
	hello.TakesRevocations = s.options.OnRevocations != nil
	if err := stream.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: hello}}); err != nil {
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
	s.options.Log.Info("joined", "controller", controller, "name", welcome.Controller, "version", welcome.Version)

	out := newOutbox(cancel)
	s.mutex.Lock()
	s.streams[controller] = out
	delete(s.missing, controller)
	s.mutex.Unlock()
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		out.drain(ctx, stream.Send)
	}()
	err = s.receive(controller, stream)
	s.mutex.Lock()
	delete(s.streams, controller)
	delete(s.unable, controller)
	s.mutex.Unlock()
	cancel()
	<-sending
	if s.options.OnLeft != nil {
		s.options.OnLeft(controller)
	}
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

func (s *Streams) receive(controller string, stream *connect.BidiStreamForClientSimple[ballastv1.FromNode, ballastv1.ToNode]) error {
	rings := newNewest(func(view *ballastv1.ReplicaView) { call(s.options.OnReplicas, controller, view) })
	defer rings.end()
	for {
		message, err := stream.Receive()
		if err != nil {
			return err
		}
		s.hear(controller, message)
		switch m := message.Message.(type) {
		case *ballastv1.ToNode_State:
			call(s.options.OnState, controller, m.State)
		case *ballastv1.ToNode_Weights:
			if update := api.WeightsFromProto(m.Weights); update != nil {
				call(s.options.OnWeights, m.Weights.Service, update)
			}
		case *ballastv1.ToNode_Open:
			if counts := api.CountsFromProto(m.Open); counts != nil {
				call(s.options.OnOpen, m.Open.Service, counts)
			}
		case *ballastv1.ToNode_Loads:
			if loads := api.LoadsFromProto(m.Loads); loads != nil {
				call(s.options.OnLoads, m.Loads.Service, loads)
			}
		case *ballastv1.ToNode_Judging:
			s.mutex.Lock()
			s.unable[controller] = !m.Judging.Able
			s.mutex.Unlock()
		case *ballastv1.ToNode_Checks:
			call(s.options.OnChecks, controller, m.Checks.Services)
		case *ballastv1.ToNode_Sources:
			call(s.options.OnSources, controller, m.Sources)
		case *ballastv1.ToNode_Revocations:
			call(s.options.OnRevocations, controller, m.Revocations)
		case *ballastv1.ToNode_Replicas:
			rings.put(m.Replicas)
		case *ballastv1.ToNode_Question:
			call(s.options.OnQuestion, controller, m.Question)
		}
	}
}

// hear takes note that a controller has said something.
func (s *Streams) hear(controller string, message *ballastv1.ToNode) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	stream := s.streams[controller]
	stream.heard, stream.alive = time.Now(), stream.alive || message.GetAlive() != nil
}

func call[T any](callback func(string, T), from string, message T) {
	if callback != nil {
		callback(from, message)
	}
}

// outbox holds the last few reports for one controller, and when that was heard.
type outbox struct {
	messages chan *ballastv1.FromNode
	end      func() // of the stream

	// Streams.mutex guards what follows.
	heard time.Time // when the controller has said something last
	alive bool      // it says every second that it works
}

// silent: it does not any more. The caller holds Streams.mutex.
func (o *outbox) silent(now time.Time) bool { return o.alive && now.Sub(o.heard) >= health.Silent }

func newOutbox(end func()) *outbox {
	return &outbox{messages: make(chan *ballastv1.FromNode, outboxMessages), end: end, heard: time.Now()}
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

// drain sends what is put, and once a second that this node works.
func (o *outbox) drain(ctx context.Context, send func(*ballastv1.FromNode) error) {
	ticker := time.NewTicker(api.AlivePeriod)
	defer ticker.Stop()
	alive := &ballastv1.FromNode{Message: &ballastv1.FromNode_Alive{Alive: &ballastv1.Alive{}}}
	for message := alive; send(message) == nil; { // else the receiving side learns why
		select {
		case message = <-o.messages:
		case <-ticker.C:
			message = alive
		case <-ctx.Done():
			return
		}
	}
}
