// Who may see the console, and by which name it is asked for.
package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/pki"
)

// sessionLife is how long a login lasts.
const sessionLife = 12 * time.Hour

// guard decides about requests.
type guard struct {
	credentials *pki.Credentials // nil: on loopback
	token       *token           // nil: none lets anybody in
	secret      [32]byte         // of this process: sessions end with it
	cookie      string           // its name is this process's own, as browsers send a host's cookies to all its ports
}

func newGuard() *guard {
	g := &guard{}
	rand.Read(g.secret[:])
	name := sha256.Sum256(g.secret[:])
	g.cookie = "ballast-console-" + hex.EncodeToString(name[:4])
	return g
}

// allows reports whether a request may see the fleet: on loopback everybody does where no token is asked for.
func (g *guard) allows(r *http.Request) bool {
	return g.byCertificate(r) || g.byToken(r) || g.credentials == nil && g.token == nil
}

// byCertificate: what a certificate says was verified in the handshake, but it may have ended since, or have been revoked.
func (g *guard) byCertificate(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	if shown := r.TLS.PeerCertificates[0]; time.Now().After(shown.NotAfter) || g.credentials.Refused(r.TLS.PeerCertificates...) != nil {
		return false
	}
	who, err := pki.PeerIdentity(*r.TLS)
	return err == nil && who.Role == pki.Ctl
}

func (g *guard) byToken(r *http.Request) bool {
	if g.token == nil {
		return false
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return g.token.is(strings.TrimSpace(text))
	}
	cookie, err := r.Cookie(g.cookie) // whatever else a proxy adds for itself
	return err == nil && g.isSession(cookie.Value, time.Now())
}

// session is what a cookie carries: when it ends, and that this process has made it for whoever knew the token as it is now.
func (g *guard) session(now time.Time) (string, bool) {
	digest, ok := g.token.digest()
	if !ok {
		return "", false
	}
	value := binary.BigEndian.AppendUint64(nil, uint64(now.Add(sessionLife).Unix()))
	return base64.RawURLEncoding.EncodeToString(g.sign(value, digest)), true
}

func (g *guard) sign(value []byte, digest [sha256.Size]byte) []byte {
	mac := hmac.New(sha256.New, g.secret[:])
	mac.Write(value)
	mac.Write(digest[:])
	return mac.Sum(value)
}

func (g *guard) isSession(text string, now time.Time) bool {
	given, err := base64.RawURLEncoding.Strict().DecodeString(text)
	digest, ok := g.token.digest()
	if err != nil || !ok || len(given) != 8+sha256.Size {
		return false
	}
	ends := time.Unix(int64(binary.BigEndian.Uint64(given)), 0)
	return hmac.Equal(given, g.sign(slices.Clone(given[:8]), digest)) && now.Before(ends)
}

// setCookie logs a browser in.
func (g *guard) setCookie(w http.ResponseWriter, session string) {
	http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: g.credentials != nil, MaxAge: int(sessionLife / time.Second)})
}

// hosts: a page of another site that has its own name resolve to this address asks by that name, and is refused (DNS rebinding). Ports may
// be those of a tunnel.
func (g *guard) hosts(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if address, err := netip.ParseAddr(host); err == nil {
		return g.credentials != nil || address.Unmap().IsLoopback()
	}
	host = strings.ToLower(host)
	return host == "localhost" || g.credentials != nil && slices.ContainsFunc(g.credentials.Identity().DNS, func(own string) bool {
		return strings.EqualFold(own, host)
	})
}
