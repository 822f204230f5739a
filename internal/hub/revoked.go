// Requests by revoked certificates, which end.
package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/pki"
)

// revokedGrace is how long the connection of a revoked certificate stays open: its owner should receive the reason.
const revokedGrace = 200 * time.Millisecond

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
	return credentials.Hold(r.TLS.PeerCertificates, func(why error) {
		go end(why) // what waits for it must not hold up who revokes
		time.AfterFunc(revokedGrace, func() { c.NetConn().Close() })
	})
}

// revokedOf ends when the certificate that a request came with is revoked; its cause is the reason for the owner.
func revokedOf(ctx context.Context) context.Context {
	if revoked, ok := ctx.Value(revokedness{}).(context.Context); ok {
		return revoked
	}
	return context.Background()
}
