package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

type stream = connect.BidiStream[ballastv1.FromNode, frame]

type callContext struct{}

// Certified tells who sends a request by the certificate of its connection.
func Certified(r *http.Request) (pki.Identity, error) {
	if r.TLS == nil {
		return pki.Identity{}, errors.New("nodes join by mutual TLS only")
	}
	return pki.PeerIdentity(*r.TLS)
}

// Handler returns the route of the streams and what answers it. It needs HTTP/2.
func (h *Hub) Handler() (path string, handler http.Handler) {
	join := connect.NewBidiStreamHandler(ballastv1connect.ControlJoinProcedure, h.join,
		connect.WithSchema(ballastv1.File_ballast_proto.Services().ByName("Control").Methods().ByName("Join")),
		connect.WithCodec(codec{}), connect.WithReadMaxBytes(h.options.Limits.MessageBytes),
		// A compressed message costs the controller more than the network saves.
		connect.WithCompression("gzip", nil, nil))
	return ballastv1connect.ControlJoinProcedure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{request: r, control: http.NewResponseController(w)}
		r.Body = &countedBody{r.Body, &c.read}
		defer c.over()
		join.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callContext{}, c)))
	})
}

// join is one stream from its beginning to its end. What it returns is the reason that the node is told.
func (h *Hub) join(ctx context.Context, s *stream) error {
	c := ctx.Value(callContext{}).(*call)
	p, refused := h.admit(s, c)
	if refused != nil {
		h.refuse(c, refused)
		return refused.error()
	}
	if refused := h.confirm(ctx, p); refused != nil {
		h.refuse(c, refused)
		return refused.error()
	}
	defer context.AfterFunc(revokedOf(ctx), func() { p.stop(connect.NewError(connect.CodePermissionDenied, context.Cause(revokedOf(ctx)))) })()
	h.enter(p)
	received := make(chan struct{})
	go func() {
		defer close(received)
		p.stop(h.receive(s, p))
	}()
	err := h.send(ctx, s, p)
	if p.slow.Load() || errors.Is(err, errSlow) { // whatever else the end of the stream has caused first
		h.metrics.refused.WithLabelValues("slow").Inc()
		err = connect.NewError(connect.CodeAborted, fmt.Errorf("it took nothing for %v", h.options.Limits.WriteTimeout))
	}
	p.stop(nil)
	<-received
	p.barred = revokedOf(ctx).Err() != nil
	h.leave(p, err)
	return err
}

// refusal is why a peer is not served.
type refusal struct {
	kind string // for metrics
	code connect.Code
	why  string
}

func (r *refusal) error() error { return connect.NewError(r.code, errors.New(r.why)) }

// admit waits for Hello and decides whether the node may join.
func (h *Hub) admit(s *stream, c *call) (*peer, *refusal) {
	identity, err := h.options.Identify(c.request)
	if err != nil {
		return nil, &refusal{"certificate", connect.CodeUnauthenticated, err.Error()}
	}
	if identity.Role != pki.LB && identity.Role != pki.Agent {
		return nil, &refusal{"role", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate of %s is for role %s: only those of roles lb and agent join", identity.Name, identity.Role)}
	}
	late, never := time.Now().Add(h.options.Limits.HelloTimeout), time.Time{}
	c.deadlines(&late, nil)
	first, err := s.Receive()
	if err != nil {
		return nil, &refusal{"hello", connect.CodeDeadlineExceeded, fmt.Sprintf("no Hello: %v", err)}
	}
	c.deadlines(&never, nil)
	hello := first.GetHello()
	switch {
	case hello == nil:
		return nil, &refusal{"hello", connect.CodeInvalidArgument, "the first message must be Hello"}
	case max(len(hello.Name), len(hello.Role), len(hello.Version)) > helloWord: // they are logged and remembered
		return nil, &refusal{"hello", connect.CodeInvalidArgument, fmt.Sprintf("a name, role or version in Hello has more than %d bytes", helloWord)}
	case hello.Protocol != api.ControlProtocol:
		return nil, &refusal{"version", connect.CodeFailedPrecondition, fmt.Sprintf(
			"%s (version %s) speaks protocol %d of control, controller %s (version %s) speaks %d: upgrade the older one",
			identity.Name, hello.Version, hello.Protocol, h.options.Name, h.options.Version, api.ControlProtocol)}
	case hello.Role != string(identity.Role):
		return nil, &refusal{"role", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate of %s is for role %s, not %s", identity.Name, identity.Role, hello.Role)}
	case hello.Name != identity.Name:
		return nil, &refusal{"name", connect.CodePermissionDenied,
			fmt.Sprintf("the certificate is for %s %s, not for %s: start the node under the name of its certificate", identity.Role, identity.Name, hello.Name)}
	}
	p := newPeer(identity, hello, c, &h.options.Limits)
	if !h.admission.allows(p.key()) {
		return nil, &refusal{"joins", connect.CodeResourceExhausted,
			fmt.Sprintf("%s %s joins too often: is there another node of that name?", identity.Role, identity.Name)}
	}
	return p, nil
}

// confirm refuses a node that knows a newer state than this controller, unless the store has none newer: it was restored from a copy. A
// controller that is cut off from the store would lead the node back to a state that was given up, keys included.
func (h *Hub) confirm(ctx context.Context, p *peer) *refusal {
	told := func() (revision uint64, known bool) {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		return h.revision, h.known
	}
	if revision, known := told(); !known || revision >= p.revision || h.options.Newest == nil {
		return nil // the first that is read of the store is confirmed
	}
	newest, err := h.options.Newest(ctx)
	revision, _ := told()
	if err == nil && revision < newest {
		err = errors.New("it has just read a newer one")
	}
	if err != nil {
		return &refusal{"behind", connect.CodeUnavailable, fmt.Sprintf("controller %s knows revision %d of the desired state, %s %s runs by %d: %v",
			h.options.Name, revision, p.identity.Role, p.identity.Name, p.revision, err)}
	}
	return nil
}

// refuse counts, and says it once an hour for each peer and reason.
func (h *Hub) refuse(c *call, r *refusal) {
	h.metrics.refused.WithLabelValues(r.kind).Inc()
	if h.admission.logs(hostOf(c.request.RemoteAddr), r.why) {
		h.options.Log.Warn("node refused", "address", c.request.RemoteAddr, "reason", r.why)
	}
}

// enter makes p the one stream of its node.
func (h *Hub) enter(p *peer) {
	h.mutex.Lock()
	before := h.peers[p.key()]
	if h.peers[p.key()] = p; before != nil {
		p.displace(before)
	}
	h.lost.remove(p.key())
	p.checks = len(h.checks[p.identity.Name]) > 0
	p.tunnels = p.identity.Role == pki.Agent
	p.revoked = h.revoked
	h.takeSources(p, p.addresses, nil) // agents are told before it can forward what it is told
	if p.identity.Role == pki.LB {
		h.lbs[p.identity.Name] = p
		p.replicas, p.judging = h.ring.view != nil, h.unable
		h.soft.enter(p)
	}
	h.mutex.Unlock()
	if before != nil {
		before.stop(connect.NewError(connect.CodeAborted, fmt.Errorf("%s %s has joined again from %s", p.identity.Role, p.identity.Name, p.address)))
	}
	h.options.Log.Info("node joined", "role", p.identity.Role, "name", p.identity.Name, "address", p.address, "version", p.version)
	h.changed()
}

func (h *Hub) leave(p *peer, why error) {
	h.mutex.Lock()
	replaced := h.peers[p.key()] != p
	if !replaced {
		delete(h.peers, p.key())
		h.lose(p)
		if h.lbs[p.identity.Name] == p {
			delete(h.lbs, p.identity.Name)
			h.sources.left(p.identity.Name)
			h.spreadSources()
		}
	}
	h.mutex.Unlock()
	h.options.Log.Info("node left", "role", p.identity.Role, "name", p.identity.Name, "address", p.address, "reason", why)
	if !replaced {
		h.changed()
	}
}

func (h *Hub) changed() {
	if h.options.Changed != nil {
		h.options.Changed()
	}
}

// send tells the peer what it should know until its stream has to end, and returns why.
func (h *Hub) send(ctx context.Context, s *stream, p *peer) error {
	welcome := &ballastv1.Welcome{Protocol: api.ControlProtocol, Controller: h.options.Name, Version: h.options.Version}
	message := messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Welcome{Welcome: welcome}})
	for {
		if message != nil {
			if err := h.sendOne(s, p, message); err != nil {
				return err
			}
			message = h.next(p)
			continue
		}
		select {
		case <-p.wake:
			message = h.next(p)
		case why := <-p.end:
			return why
		case <-ctx.Done():
			return connect.NewError(connect.CodeUnavailable, errors.New("the controller stops, or the connection is gone"))
		}
	}
}

// sendOne waits for a slow peer no longer than the limit says.
func (h *Hub) sendOne(s *stream, p *peer, message *frame) error {
	select {
	case why := <-p.end: // its deadlines are not ours to move any more
		return why
	default:
	}
	// A write deadline that passes when the message has just been sent would reset the stream as well, and nobody could tell why it has ended.
	late := time.AfterFunc(h.options.Limits.WriteTimeout, func() {
		p.slow.Store(true)
		now := time.Now()
		p.call.deadlines(nil, &now)
	})
	err := s.Send(message)
	if !late.Stop() {
		return errors.Join(err, errSlow)
	}
	if err == nil {
		h.metrics.sent(message.size())
		return nil
	}
	select {
	case why := <-p.end:
		return why
	default:
		return err
	}
}

// errSlow ends a stream whose peer took nothing for as long as the limit says.
var errSlow = errors.New("it took nothing in time")

// receive takes the node's reports until its stream ends.
func (h *Hub) receive(s *stream, p *peer) error {
	for {
		message, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return connect.NewError(connect.CodeCanceled, errors.New("the node ended its stream"))
		}
		if err != nil {
			if code := connect.CodeOf(err); code == connect.CodeResourceExhausted || code == connect.CodeInvalidArgument {
				h.metrics.refused.WithLabelValues("report").Inc()
			}
			return err
		}
		read := p.call.read.Load()
		h.metrics.received(read - p.taken)
		allowed := p.messages.Allow() && p.bytes.AllowN(time.Now(), int(read-p.taken))
		p.taken = read
		if !allowed {
			h.metrics.refused.WithLabelValues("flooding").Inc()
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("too many reports: at most %v messages and %v bytes a second are taken",
				h.options.Limits.Messages, h.options.Limits.Bytes))
		}
		if err := h.take(p, message); err != nil {
			h.metrics.refused.WithLabelValues("report").Inc()
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
}

// Implementation constants: what is kept of a node's words.
const (
	helloWord    = 256 // bytes
	problems     = 64
	problemBytes = 512
)

// legible shortens what a node says, and keeps it from doing anything to a terminal or to a table.
func legible(text string) string {
	if len(text) > problemBytes {
		text = strings.ToValidUTF8(text[:problemBytes], "") + " ..."
	}
	return strings.Map(printable, text)
}

// problemsOf shortens what a node says is wrong with it.
func problemsOf(told []string) []string {
	kept := make([]string, 0, min(len(told), problems))
	for _, problem := range told[:min(len(told), problems)] {
		kept = append(kept, legible(problem))
	}
	return kept
}

func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return ' '
	}
	return r
}

// take hands one report on. Kinds that we do not know are of a newer node, and ignored.
func (h *Hub) take(p *peer, message *ballastv1.FromNode) error {
	role := pki.LB
	switch m := message.Message.(type) {
	case *ballastv1.FromNode_Hello:
		return errors.New("a second Hello")
	case *ballastv1.FromNode_Load:
		role = pki.Agent
		if p.identity.Role == role {
			h.mutex.Lock()
			p.sources = problemsOf(m.Load.Unavailable)
			contested := p.contested() != ""
			h.mutex.Unlock()
			if contested { // nobody knows of which host
				m.Load = &ballastv1.LoadReport{}
			}
			h.options.Reports.Load(p.identity, loadFromProto(m.Load))
		}
	case *ballastv1.FromNode_Traffic:
		if p.identity.Role == role {
			h.options.Reports.Traffic(p.identity.Name, trafficFromProto(m.Traffic))
		}
	case *ballastv1.FromNode_Health:
		if p.identity.Role == role {
			h.options.Reports.Health(p.identity.Name, healthFromProto(m.Health))
		}
	case *ballastv1.FromNode_Replica:
		if p.identity.Role == role {
			h.takeReplica(p, m.Replica)
		}
	case *ballastv1.FromNode_Applied:
		h.mutex.Lock()
		h.takeApplied(p, m.Applied.Revision)
		h.mutex.Unlock()
		return nil // agents may tell it, too
	case *ballastv1.FromNode_Keys:
		role = pki.Agent
		if p.identity.Role == role {
			h.takeKeys(p, m.Keys)
		}
	case *ballastv1.FromNode_Condition:
		h.mutex.Lock()
		p.ready, p.problems = "no", problemsOf(m.Condition.Problems)
		if m.Condition.Ready {
			p.ready = "yes"
		}
		p.vips = m.Condition.Announcements
		h.takeSources(p, m.Condition.Addresses, m.Condition.Own)
		p.takeMTUs(m.Condition)
		believed := p.identity.Role == pki.Agent && p.contested() == ""
		h.mutex.Unlock()
		if believed {
			h.options.Reports.Losses(p.identity, lossesFromProto(m.Condition))
		}
		return nil
	default:
		return nil
	}
	if p.identity.Role != role {
		return fmt.Errorf("%T is sent by nodes of role %s, not %s", message.Message, role, p.identity.Role)
	}
	return nil
}
