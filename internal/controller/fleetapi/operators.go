package fleetapi

import (
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ForOperators lets people's programs and controllers use the fleet API, and nobody else: a node that was broken into
// changes nothing. Programs that keep services of their own may call the procedures that are named.
func ForOperators(handler http.Handler, forSources ...string) http.Handler {
	errorsTo := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := hub.Certified(r)
		switch {
		case err != nil, who.Role == pki.Ctl, who.Role == pki.Controller, who.Role == pki.Source && slices.Contains(forSources, r.URL.Path):
		case who.Role == pki.Source:
			err = fmt.Errorf("the certificate of %s is for role %s, which keeps services of its own and asks nothing else: use one for role %s", who.Name, who.Role, pki.Ctl)
		default:
			err = fmt.Errorf("the certificate of %s is for role %s: the fleet is read and changed with one for role %s", who.Name, who.Role, pki.Ctl)
		}
		if err == nil {
			by := api.Caller{Name: who.Name, Role: string(who.Role), Address: r.RemoteAddr, Certificate: r.TLS.PeerCertificates[0]}
			handler.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), by)))
			return
		}
		hub.NoteRefused(r, pki.WrongRole, err)
		refused := connect.NewError(connect.CodePermissionDenied, err)
		if !errorsTo.IsSupported(r) {
			http.Error(w, refused.Error(), http.StatusForbidden)
			return
		}
		errorsTo.Write(w, r, refused) // the client may have gone
	})
}
