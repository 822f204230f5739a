// Revoked certificates: their owners are cut off, and nodes are told of them.
package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	lastWords  = 200 * time.Millisecond // until the connection of a revoked certificate is closed: its owner should hear why
	atOnceTold = 1000                   // revocations of one message
)

type (
	connection  struct{} // key of a request's context: its net.Conn
	revokedness struct{} // the same: a context that ends, for the reason, when the certificate is revoked
)

// refuseRevoked ends what the owners of revoked certificates have under way, and begins nothing for them.
func refuseRevoked(credentials *pki.Credentials, handler http.Handler) http.Handler {
	errorsTo := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		revoked, end := context.WithCancelCause(context.Background())
		release, err := hold(credentials, r, end)
		if err != nil {
			NoteRefused(r, pki.ReasonOf(err), err)
			refused := connect.NewError(connect.CodePermissionDenied, err)
			if !errorsTo.IsSupported(r) {
				http.Error(w, refused.Error(), http.StatusForbidden)
				return
			}
			errorsTo.Write(w, r, refused) // the client may have gone
			return
		}
		defer release()
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), revokedness{}, revoked)))
	})
}

func hold(credentials *pki.Credentials, r *http.Request, end func(error)) (release func(), err error) {
	c, ok := r.Context().Value(connection{}).(*tls.Conn)
	if !ok || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, errors.New("requests come by mutual TLS only")
	}
	return credentials.Hold(r.TLS.PeerCertificates[0], func(why error) {
		go end(why) // what waits for it must not hold up who revokes
		time.AfterFunc(lastWords, func() { c.NetConn().Close() })
	})
}

// revokedOf ends when the certificate that a request came with is revoked; its cause is what the owner should hear.
func revokedOf(ctx context.Context) context.Context {
	if revoked, ok := ctx.Value(revokedness{}).(context.Context); ok {
		return revoked
	}
	return context.Background()
}

// SetRevoked takes the whole list of revoked certificates. Nodes that are connected are told what is news of it.
func (h *Hub) SetRevoked(all, news []pki.Revocation) {
	told := api.RevocationsToProto(news)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.revoked = api.RevocationsToProto(all)
	for _, p := range h.peers {
		if p.revoked = slices.Concat(p.revoked, told); len(p.revoked) > len(h.revoked) {
			p.revoked = h.revoked
		}
		p.wakeUp()
	}
}

// nextRevocations is the beginning of what the peer has to be told. The caller holds the hub's lock.
func (p *peer) nextRevocations() *frame {
	list := p.revoked[:min(len(p.revoked), atOnceTold)]
	p.revoked = p.revoked[len(list):]
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Revocations{Revocations: &ballastv1.Revocations{Revocations: list}}})
}

// Certificates are those of the nodes that are connected.
func (h *Hub) Certificates() (list []*x509.Certificate) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, p := range h.peers {
		if state := p.call.request.TLS; state != nil {
			list = append(list, state.PeerCertificates[0])
		}
	}
	return list
}
