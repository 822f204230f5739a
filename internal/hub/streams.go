// The connections of nodes: who joins, what is sent and received, and why a stream ends.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

type stream = connect.BidiStream[ballastv1.FromNode, frame]

// broker is all that streams know of the hub.
type broker interface {
	// confirm refuses a node that runs by a newer state than this controller may have.
	confirm(ctx context.Context, p *peer) *refusal
	// enter makes p the one stream of its node, and ends an older one.
	enter(p *peer)
	// next returns the next message to p; nil: none waits. p.wake reports new ones.
	next(p *peer) *frame
	// report takes a message from p. An error ends the stream.
	report(p *peer, message *ballastv1.FromNode) error
	// leave ends what enter began.
	leave(p *peer, why error)
}

// streams serves the streams of nodes. It keeps no state but that of admission, which has a lock of its own.
type streams struct {
	options   *Options
	metrics   *metrics
	admission *admission
	broker    broker
}

// Certified returns who sends a request, from the certificate of its connection.
func Certified(r *http.Request) (pki.Identity, error) {
	if r.TLS == nil {
		return pki.Identity{}, errors.New("nodes join by mutual TLS only")
	}
	return pki.PeerIdentity(*r.TLS)
}

// ForNodes has a handler answer load balancers and agents, by mutual TLS, and nobody else.
func ForNodes(handler http.Handler) http.Handler {
	errorsTo := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := Certified(r)
		if err == nil && who.Role != pki.LB && who.Role != pki.Agent {
			err = connect.NewError(connect.CodePermissionDenied, fmt.Errorf("the certificate of %s is for role %s: load balancers and agents are answered", who.Name, who.Role))
		}
		if err != nil {
			NoteRefused(r, pki.WrongRole, err)
			errorsTo.Write(w, r, err) // the client may have gone
			return
		}
		handler.ServeHTTP(w, r)
	})
}

type callContext struct{}

// handler returns the route of the streams and what answers it. It needs HTTP/2.
func (s *streams) handler() (path string, handler http.Handler) {
	join := connect.NewBidiStreamHandler(ballastv1connect.ControlJoinProcedure, s.serve,
		connect.WithSchema(ballastv1.File_ballast_proto.Services().ByName("Control").Methods().ByName("Join")),
		connect.WithCodec(codec{}), connect.WithReadMaxBytes(s.options.Limits.MessageBytes),
		// A compressed message costs the controller more than the network saves.
		connect.WithCompression("gzip", nil, nil))
	return ballastv1connect.ControlJoinProcedure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{request: r, control: http.NewResponseController(w)}
		r.Body = &countedBody{r.Body, &c.read}
		defer c.over()
		join.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callContext{}, c)))
	})
}

// serve is one stream from its beginning to its end. What it returns is the reason that the node is sent.
func (s *streams) serve(ctx context.Context, conn *stream) error {
	c := ctx.Value(callContext{}).(*call)
	p, refused := s.admit(conn, c)
	if refused == nil {
		refused = s.broker.confirm(ctx, p)
	}
	if refused != nil {
		s.refuse(c, refused)
		return refused.error()
	}
	defer context.AfterFunc(revokedOf(ctx), func() { p.stop(connect.NewError(connect.CodePermissionDenied, context.Cause(revokedOf(ctx)))) })()
	s.broker.enter(p)
	received := make(chan struct{})
	go func() {
		defer close(received)
		p.stop(s.receive(conn, p))
	}()
	err := s.send(ctx, conn, p)
	if p.slow.Load() || errors.Is(err, errSlow) { // whatever else the end of the stream has caused first
		s.metrics.refused.WithLabelValues("slow").Inc()
		err = connect.NewError(connect.CodeAborted, fmt.Errorf("it took nothing for %v", s.options.Limits.WriteTimeout))
	}
	p.stop(nil)
	<-received
	p.revoked = revokedOf(ctx).Err() != nil
	s.broker.leave(p, err)
	return err
}

// helloBytes bounds a name, role or version in Hello: they are logged and kept.
const helloBytes = 256

// refusal is why a peer is not served.
type refusal struct {
	kind string // for metrics
	code connect.Code
	why  string
}

func (r *refusal) error() error { return connect.NewError(r.code, errors.New(r.why)) }

// admit waits for Hello and decides whether the node may join.
func (s *streams) admit(conn *stream, c *call) (*peer, *refusal) {
	identity, err := s.options.Identify(c.request)
	if err != nil {
		return nil, &refusal{"certificate", connect.CodeUnauthenticated, err.Error()}
	}
	if identity.Role != pki.LB && identity.Role != pki.Agent {
		return nil, &refusal{"role", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate of %s is for role %s: only those of roles lb and agent join", identity.Name, identity.Role)}
	}
	late, never := time.Now().Add(s.options.Limits.HelloTimeout), time.Time{}
	c.deadlines(&late, nil)
	first, err := conn.Receive()
	if err != nil {
		return nil, &refusal{"hello", connect.CodeDeadlineExceeded, fmt.Sprintf("no Hello: %v", err)}
	}
	c.deadlines(&never, nil)
	hello := first.GetHello()
	switch {
	case hello == nil:
		return nil, &refusal{"hello", connect.CodeInvalidArgument, "the first message must be Hello"}
	case max(len(hello.Name), len(hello.Role), len(hello.Version)) > helloBytes:
		return nil, &refusal{"hello", connect.CodeInvalidArgument, fmt.Sprintf("a name, role or version in Hello has more than %d bytes", helloBytes)}
	case hello.Protocol != api.ControlProtocol:
		return nil, &refusal{"version", connect.CodeFailedPrecondition, fmt.Sprintf(
			"%s (version %s) has protocol %d of control, controller %s (version %s) has %d: upgrade the older one",
			identity.Name, hello.Version, hello.Protocol, s.options.Name, s.options.Version, api.ControlProtocol)}
	case hello.Role != string(identity.Role):
		return nil, &refusal{"role", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate of %s is for role %s, not %s", identity.Name, identity.Role, hello.Role)}
	case hello.Name != identity.Name:
		return nil, &refusal{"name", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate is for %s %s, not for %s: start the node under the name of its certificate", identity.Role, identity.Name, hello.Name)}
	}
	p := newPeer(identity, hello, c, &s.options.Limits)
	if !s.admission.allows(p.key()) {
		return nil, &refusal{"joins", connect.CodeResourceExhausted,
			fmt.Sprintf("%s %s joins too often: is there another node of that name?", identity.Role, identity.Name)}
	}
	return p, nil
}

// refuse counts a refusal, and logs it once an hour for each peer and reason.
func (s *streams) refuse(c *call, r *refusal) {
	s.metrics.refused.WithLabelValues(r.kind).Inc()
	if s.admission.logs(hostOf(c.request.RemoteAddr), r.why) {
		s.options.Log.Warn("node refused", "address", c.request.RemoteAddr, "reason", r.why)
	}
}

// send sends the peer what waits for it until its stream has to end, and returns why.
func (s *streams) send(ctx context.Context, conn *stream, p *peer) error {
	welcome := &ballastv1.Welcome{Protocol: api.ControlProtocol, Controller: s.options.Name, Version: s.options.Version}
	message := messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Welcome{Welcome: welcome}})
	var alive <-chan time.Time
	if p.isLB() {
		ticker := time.NewTicker(api.AlivePeriod)
		defer ticker.Stop()
		alive = ticker.C
	}
	for {
		if message != nil {
			if err := s.sendOne(conn, p, message); err != nil {
				return err
			}
			message = s.broker.next(p)
			continue
		}
		select {
		case <-p.wake:
			message = s.broker.next(p)
		case <-alive:
			message = messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Alive{Alive: &ballastv1.Alive{}}})
		case why := <-p.end:
			return why
		case <-ctx.Done():
			return connect.NewError(connect.CodeUnavailable, errors.New("the controller stops, or the connection is gone"))
		}
	}
}

// sendOne waits for a slow peer no longer than Limits.WriteTimeout.
func (s *streams) sendOne(conn *stream, p *peer, message *frame) error {
	select {
	case why := <-p.end: // its deadlines are not ours to move any more
		return why
	default:
	}
	// A write deadline that passes when the message has just been sent would reset the stream as well, and nobody could tell why it has ended.
	late := time.AfterFunc(s.options.Limits.WriteTimeout, func() {
		p.slow.Store(true)
		now := time.Now()
		p.call.deadlines(nil, &now)
	})
	err := conn.Send(message)
	if !late.Stop() {
		return errors.Join(err, errSlow)
	}
	if err == nil {
		s.metrics.sent(message.size())
		return nil
	}
	select {
	case why := <-p.end:
		return why
	default:
		return err
	}
}

// errSlow ends a stream whose peer took nothing for Limits.WriteTimeout.
var errSlow = errors.New("it took nothing in time")

// receive takes the node's reports until its stream ends.
func (s *streams) receive(conn *stream, p *peer) error {
	for {
		message, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return connect.NewError(connect.CodeCanceled, errors.New("the node ended its stream"))
		}
		if err != nil {
			if code := connect.CodeOf(err); code == connect.CodeResourceExhausted || code == connect.CodeInvalidArgument {
				s.metrics.refused.WithLabelValues("report").Inc()
			}
			return err
		}
		p.heard.Store(int64(time.Since(p.since)))
		read := p.call.read.Load()
		s.metrics.received(read - p.taken)
		allowed := p.messages.Allow() && p.bytes.AllowN(time.Now(), int(read-p.taken))
		p.taken = read
		if !allowed {
			s.metrics.refused.WithLabelValues("flooding").Inc()
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("too many reports: at most %v messages and %v bytes a second are taken",
				s.options.Limits.Messages, s.options.Limits.Bytes))
		}
		if err := s.broker.report(p, message); err != nil {
			s.metrics.refused.WithLabelValues("report").Inc()
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
}
