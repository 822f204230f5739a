package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"
)

// dist is what `npm ci && npm run build` in page makes of page/src.
//
//go:embed page/dist
var dist embed.FS

//go:embed login.html
var loginText string

var loginPage = template.Must(template.New("login").Parse(loginText))

// Implementation constants.
const (
	answerTimeout = 30 * time.Second // to take an answer that is no stream
	loginTimeout  = 5 * time.Second  // to send a token
	loginBytes    = 4096
)

// policy lets a page have what this daemon serves, and nothing else: nothing from elsewhere, nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// handler serves the page. Every route but the login reads, and that one gives a cookie.
func (c *Console) handler(source Source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.members(c.page))
	mux.HandleFunc("GET /events", c.members(c.events))
	mux.HandleFunc("GET /server", c.members(c.once(c.asking, c.server)))
	mux.HandleFunc("GET /diff", c.members(c.once(c.asking, source.diff)))
	mux.HandleFunc("GET /sample", c.members(c.once(c.sampling, source.sample)))
	mux.HandleFunc("GET /assets/{name}", c.asset)
	mux.HandleFunc("GET /login", c.login)
	mux.HandleFunc("POST /login", c.enter)
	own := http.NewCrossOriginProtection() // no other site logs a browser in
	return c.checked(own.Handler(mux))
}

// checked has every answer say what browsers may do with it, and refuses other sites.
func (c *Console) checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			w.Header().Set(name, value)
		}
		if !c.guard.hosts(r.Host) {
			http.Error(w, fmt.Sprintf("this console is not %q: ask for it by its address, by localhost, or by a name in its certificate", r.Host), http.StatusMisdirectedRequest)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.URL.Path != "/" {
			http.Error(w, "another site asks", http.StatusForbidden)
			return
		}
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // a stream sets its own
		next.ServeHTTP(w, r)
	})
}

// members sends away whom the guard does not let in.
func (c *Console) members(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Get("Authorization") != ""
		switch {
		case c.guard.allows(r):
			next(w, r)
		case c.guard.token != nil && given:
			w.Header().Set("WWW-Authenticate", `Bearer realm="ballast console", error="invalid_token"`)
			http.Error(w, "wrong token: the header Authorization must be: Bearer TOKEN, with the content of the file of --console-token as it is now", http.StatusUnauthorized)
		case c.guard.token != nil && r.URL.Path == "/":
			http.Redirect(w, r, "/login", http.StatusSeeOther)
		case c.guard.token != nil:
			w.Header().Set("WWW-Authenticate", `Bearer realm="ballast console"`)
			http.Error(w, "log in at /login, or send the content of the file of --console-token in a header: Authorization: Bearer TOKEN", http.StatusUnauthorized)
		default:
			http.Error(w, "show a certificate of this fleet for role ctl: import it into the browser (docs/run/console.md), or start the daemon with --console-token", http.StatusForbidden)
		}
	}
}

func (c *Console) page(w http.ResponseWriter, r *http.Request) { serveFile(w, r, "index.html") }

func (c *Console) asset(w http.ResponseWriter, r *http.Request) { serveFile(w, r, r.PathValue("name")) }

func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	content, err := fs.ReadFile(dist, path.Join("page/dist", path.Base(name)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	if c.guard.token == nil || c.guard.allows(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	loginPage.Execute(w, r.URL.Query().Has("wrong")) // the client may have gone
}

func (c *Console) enter(w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(loginTimeout))
	r.Body = http.MaxBytesReader(w, r.Body, loginBytes)
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	if c.attempts.pauses(from, time.Now()) {
		w.Header().Set("Retry-After", strconv.Itoa(int(attemptsPause/time.Second)))
		http.Error(w, "too many wrong tokens from this address: try again in a minute", http.StatusTooManyRequests)
		return
	}
	if err := r.ParseForm(); err != nil {
		http.Error(w, "that is no token", http.StatusBadRequest)
		return
	}
	if c.guard.token == nil || !c.guard.token.is(r.PostForm.Get("token")) {
		if c.attempts.wrong(from, time.Now()) {
			c.log.Warn("console: wrong token: more of them from this address are not logged for an hour", "from", r.RemoteAddr)
		}
		http.Redirect(w, r, "/login?"+url.Values{"wrong": {""}}.Encode(), http.StatusSeeOther)
		return
	}
	if session, ok := c.guard.session(time.Now()); ok {
		c.guard.setCookie(w, session)
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
