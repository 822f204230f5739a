// What answers on the ports of a controller before its store is open: others' stores, which it may wait for, and that it waits.
package controller

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

const (
	noncePath = "/v1/joining" // where a controller that joins answers who it is

	waits = "this controller waits for its store: where it is one of several, most of them must run"
)

// front answers on one port: first that the controller waits, later what it has.
type front struct{ opened atomic.Pointer[http.Handler] }

func (f *front) open(h http.Handler) { f.opened.Store(&h) }

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if opened := f.opened.Load(); opened != nil {
		(*opened).ServeHTTP(w, r)
		return
	}
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
	rest  front
	store front
}

// prefixes are those of etcd's peers.
var prefixes = []string{"/raft", "/members", "/leases", "/version", "/downgrade"}

// ServeHTTP implements http.Handler.
func (p *peerFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ofStore := func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }
	if r.URL.Path != noncePath && !slices.ContainsFunc(prefixes, ofStore) {
		p.rest.ServeHTTP(w, r)
		return
	}
	if who, err := hub.Certified(r); err != nil || who.Role != pki.Controller {
		http.Error(w, "this is for certificates of role controller", http.StatusForbidden)
		return
	}
	if r.URL.Path == noncePath {
		w.Write([]byte(p.nonce)) // whoever asked may have gone
		return
	}
	p.store.ServeHTTP(w, r)
}

// waitingRoutes is what root is served on this machine before the store is open.
func waitingRoutes(version, name string) *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
		return Status{Status: api.Status{Role: string(pki.Controller), NotReady: []string{waits}, Version: version}, Name: name, Problems: []string{waits}}, nil
	})
	s.Otherwise(waits)
	return s
}
