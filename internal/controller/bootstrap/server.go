// Servers that answer before the store is open: others' stores, which it may wait for, and that it waits.
package bootstrap

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

const (
	waitTime = 3 * time.Second // of those who ask early

	// Waits is what is answered until the store is open.
	Waits = "this controller waits for its store: where it is one of several, most of them must run"
)

// server answers on one port: first early, and that the controller waits, to whoever does not wait with it; later what
// it has.
type server struct {
	early  http.Handler // answers what is asked before; nil: nothing
	opened atomic.Pointer[http.Handler]
	once   sync.Once
	ready  chan struct{} // closed when it is open
}

func newServer(early http.Handler) *server { return &server{early: early, ready: make(chan struct{})} }

func (s *server) open(h http.Handler) {
	s.opened.Store(&h)
	s.once.Do(func() { close(s.ready) })
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.opened.Load() == nil {
		if s.early != nil && (r.URL.Path == api.PathStatus || r.URL.Path == ballastv1connect.ControllersAddControllerProcedure) {
			s.early.ServeHTTP(w, r)
			return
		}
		select {
		case <-s.ready:
		case <-r.Context().Done():
		case <-time.After(waitTime):
		}
	}
	if opened := s.opened.Load(); opened != nil {
		(*opened).ServeHTTP(w, r)
		return
	}
	answerWaits(w, r)
}

// answerWaits answers that the store is not open, so that whoever asks tries another controller, or again.
func answerWaits(w http.ResponseWriter, r *http.Request) {
	errorsTo, waiting := connect.NewErrorWriter(), connect.NewError(connect.CodeUnavailable, errWaits)
	if errorsTo.IsSupported(r) {
		errorsTo.Write(w, r, waiting) // the client may have gone
		return
	}
	http.Error(w, Waits, http.StatusServiceUnavailable)
}

var errWaits = errors.New(Waits)

// peerServer answers controllers alone: their stores, and one that looks for who has asked to join.
type peerServer struct {
	nonce string
	rest  *server
	store *server
	shown *members.Shown
}

// prefixes are those of etcd's peers.
var prefixes = []string{"/raft", "/members", "/leases", "/version", "/downgrade"}

var errNoController = errors.New("this is for certificates of role controller")

// ServeHTTP implements http.Handler.
func (p *peerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ofStore := func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }
	if r.URL.Path != members.NoncePath && !slices.ContainsFunc(prefixes, ofStore) {
		p.rest.ServeHTTP(w, r)
		return
	}
	who, err := hub.Certified(r)
	if err != nil || who.Role != pki.Controller {
		err = errNoController
		hub.NoteRefused(r, pki.WrongRole, err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	p.shown.Note(who.Name, r.TLS.PeerCertificates[0])
	if r.URL.Path == members.NoncePath {
		w.Write([]byte(p.nonce)) // whoever asked may have gone
		return
	}
	p.store.ServeHTTP(w, r)
}
