// What answers on the ports of a controller before its store is open: others' stores, which it may wait for, and that it waits.
package controller

import (
	"crypto/x509"
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
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

const (
	noncePath = "/v1/joining" // where a controller that joins answers who it is

	waitTime = 3 * time.Second // of those who ask early

	waits = "this controller waits for its store: where it is one of several, most of them must run"
)

// front answers on one port: first early, and that the controller waits, to whoever does not wait with it; later what it has.
type front struct {
	early  http.Handler // answers what is asked before; nil: nothing
	opened atomic.Pointer[http.Handler]
	once   sync.Once
	is     chan struct{} // closed when it is open
}

func newFront(early http.Handler) *front { return &front{early: early, is: make(chan struct{})} }

func (f *front) open(h http.Handler) {
	f.opened.Store(&h)
	f.once.Do(func() { close(f.is) })
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.opened.Load() == nil {
		if f.early != nil && (r.URL.Path == api.PathStatus || r.URL.Path == ballastv1connect.ControllersAddControllerProcedure) {
			f.early.ServeHTTP(w, r)
			return
		}
		select {
		case <-f.is:
		case <-r.Context().Done():
		case <-time.After(waitTime):
		}
	}
	if opened := f.opened.Load(); opened != nil {
		(*opened).ServeHTTP(w, r)
		return
	}
	tellWaits(w, r)
}

// tellWaits answers that the store is not open, so that whoever asks tries another controller, or again.
func tellWaits(w http.ResponseWriter, r *http.Request) {
	errorsTo, waiting := connect.NewErrorWriter(), connect.NewError(connect.CodeUnavailable, errWaits)
	if errorsTo.IsSupported(r) {
		errorsTo.Write(w, r, waiting) // the client may have gone
		return
	}
	http.Error(w, waits, http.StatusServiceUnavailable)
}

var errWaits = errors.New(waits)

// peerFront answers controllers alone: their stores, and one that looks for who has asked to join.
type peerFront struct {
	nonce string
	rest  *front
	store *front
	shown shownCertificates
}

// shownCertificates are those that controllers have shown last, by their names. The zero value knows none.
type shownCertificates struct{ byName sync.Map }

func (s *shownCertificates) of(name string) *x509.Certificate {
	certificate, _ := s.byName.Load(name)
	shown, _ := certificate.(*x509.Certificate)
	return shown
}

// prefixes are those of etcd's peers.
var prefixes = []string{"/raft", "/members", "/leases", "/version", "/downgrade"}

var errNoController = errors.New("this is for certificates of role controller")

// ServeHTTP implements http.Handler.
func (p *peerFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ofStore := func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }
	if r.URL.Path != noncePath && !slices.ContainsFunc(prefixes, ofStore) {
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
	p.shown.byName.Store(who.Name, r.TLS.PeerCertificates[0])
	if r.URL.Path == noncePath {
		w.Write([]byte(p.nonce)) // whoever asked may have gone
		return
	}
	p.store.ServeHTTP(w, r)
}

// waitingRoutes is what root is served on this machine before the store is open.
func waitingRoutes(version, name string) http.Handler {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
		return Status{Status: api.Status{Role: string(pki.Controller), NotReady: []string{waits}, Version: version}, Name: name, Problems: []string{waits}}, nil
	})
	return s
}
