package console

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

const goodToken = "0123456789abcdef0123"

// served is a console of a test.
type served struct {
	t       *testing.T
	address string
	scheme  string
	looks   atomic.Int64 // views that were asked for
	source  Source       // beside the view
}

// serve shows view until the test ends.
func serve(t *testing.T, o Options, view func() View) *served {
	t.Helper()
	return serveAll(t, o, view, Source{})
}

// serveAll also answers what pages ask for once.
func serveAll(t *testing.T, o Options, view func() View, source Source) *served {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	if o.Log == nil {
		o.Log = fleettest.Log(t)
	}
	c, err := New(o)
	fleettest.Require(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // whatever it is served as
	fleettest.Require(t, err)
	s := &served{t: t, address: listener.Addr().String(), scheme: "http://", source: source}
	if o.Load != nil {
		s.scheme = "https://"
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		source := s.source
		source.View = func(context.Context) View {
			s.looks.Add(1)
			return view()
		}
		ended <- c.Serve(ctx, listener, source)
	}()
	t.Cleanup(func() { cancel(); fleettest.Require(t, <-ended) })
	return s
}

func tokenFile(t *testing.T, content string, mode os.FileMode) string {
	path := filepath.Join(t.TempDir(), "token")
	fleettest.Require(t, os.WriteFile(path, []byte(content), mode))
	fleettest.Require(t, os.Chmod(path, mode))
	return path
}

// ask returns the answer to a request, which change may alter; its body is read.
func (s *served) ask(client *http.Client, method, path string, change func(*http.Request)) (*http.Response, string) {
	s.t.Helper()
	request, err := http.NewRequest(method, s.scheme+s.address+path, nil)
	fleettest.Require(s.t, err)
	if change != nil {
		change(request)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), fleettest.Deadline)
	defer cancel()
	answer, err := client.Do(request.WithContext(ctx))
	fleettest.Require(s.t, err)
	defer answer.Body.Close()
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		return answer, ""
	}
	body, err := io.ReadAll(answer.Body)
	fleettest.Require(s.t, err)
	return answer, string(body)
}

// noRedirect is a client that shows where it is sent.
func noRedirect() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{DisableKeepAlives: true}}
}

func withHost(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }

// stream reads the messages of a stream.
type stream struct {
	t      *testing.T
	body   io.Closer
	lines  *bufio.Reader
	status int
}

func (s *served) watch(change func(*http.Request)) *stream {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), "GET", "http://"+s.address+"/events", nil)
	fleettest.Require(s.t, err)
	if change != nil {
		change(request)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	fleettest.Require(s.t, err)
	s.t.Cleanup(func() { answer.Body.Close() })
	return &stream{s.t, answer.Body, bufio.NewReader(answer.Body), answer.StatusCode}
}

// next returns false at the end.
func (s *stream) next() (m message, ok bool) {
	s.t.Helper()
	defer time.AfterFunc(fleettest.Deadline, func() { s.body.Close() }).Stop()
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return m, false
		}
		if text, found := strings.CutPrefix(line, "data: "); found {
			fleettest.Require(s.t, json.Unmarshal([]byte(text), &m))
			return m, true
		}
	}
}

func TestAnAddressThatIsNotLoopbackIsServedByTLSAlone(t *testing.T) {
	none := func() (*pki.Credentials, error) { return nil, os.ErrNotExist }
	for _, address := range []string{"0.0.0.0:9440", ":9440", "192.0.2.1:9440", "[::]:9440"} {
		_, err := New(Options{Address: address, Load: none})
		if err == nil || !strings.Contains(err.Error(), "TLS alone") {
			t.Errorf("%s without a certificate: %v", address, err)
		}
	}
	for _, address := range []string{"127.0.0.1:9440", "localhost:9440", "[::1]:9440", "127.9.9.9:9440"} {
		if _, err := New(Options{Address: address, Load: none}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestATokenThatOthersCanReadOrGuessIsRefused(t *testing.T) {
	for what, path := range map[string]string{
		"readable by all": tokenFile(t, goodToken, 0o604), "writable by all": tokenFile(t, goodToken, 0o602), "short": tokenFile(t, "secret\n", 0o600),
		"long": tokenFile(t, strings.Repeat("x", tokenMax+1), 0o600), "missing": "/nonexistent", "a folder": t.TempDir(),
	} {
		if _, err := New(Options{Address: "127.0.0.1:0", TokenFile: path}); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}

func TestAnotherNameForThisHostIsRefused(t *testing.T) {
	s := serve(t, Options{}, small)
	for host, status := range map[string]int{"evil.example": 421, "evil.example:80": 421, "localhost.evil.example": 421, "192.0.2.1": 421, "": 421,
		"localhost": 200, "localhost:9999": 200, "127.0.0.1:1": 200, "[::1]:1": 200} {
		connection, err := net.Dial("tcp", s.address)
		fleettest.Require(t, err)
		fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
		fleettest.Require(t, err)
		connection.Close()
		if answer.StatusCode != status {
			t.Errorf("host %q: %s, want %d", host, answer.Status, status)
		}
	}
}

func TestEveryAnswerForbidsWhatThePageDoesNotNeed(t *testing.T) {
	s := serve(t, Options{}, small)
	for _, path := range []string{"/", "/assets/app.js", "/assets/none", "/none", "/events"} {
		answer, _ := s.ask(noRedirect(), "GET", path, nil)
		csp := answer.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(csp, part) {
				t.Errorf("%s: policy %q lacks %q", path, csp, part)
			}
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		for name, want := range map[string]string{"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if have := answer.Header.Get(name); have != want {
				t.Errorf("%s: %s is %q", path, name, have)
			}
		}
	}
}

func TestNoMethodChangesAnything(t *testing.T) {
	s := serve(t, Options{}, small)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE", "OPTIONS"} {
		for _, path := range []string{"/", "/events", "/assets/app.js", "/ballast.v1.Fleet/Apply", "/v1/config/reload", "/v1/counters"} {
			if answer, _ := s.ask(noRedirect(), method, path, nil); answer.StatusCode < 400 {
				t.Errorf("%s %s: %s", method, path, answer.Status)
			}
		}
	}
	for _, path := range []string{"/v1/status", "/v1/running", "/metrics", "/ballast.v1.Fleet/GetFleet", "/assets/..%2f..%2fconsole.go", "/assets/"} {
		if answer, _ := s.ask(noRedirect(), "GET", path, nil); answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s", path, answer.Status)
		}
	}
}

func TestAnotherSiteGetsNothing(t *testing.T) {
	s := serve(t, Options{TokenFile: tokenFile(t, goodToken, 0o600)}, small)
	from := func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Authorization", "Bearer "+goodToken)
	}
	for method, path := range map[string]string{"GET": "/events", "POST": "/login"} {
		if answer, _ := s.ask(noRedirect(), method, path, from); answer.StatusCode != http.StatusForbidden || len(answer.Cookies()) > 0 {
			t.Errorf("%s %s: %s", method, path, answer.Status)
		}
	}
}

// login sends a token as the form does.
func (s *served) login(client *http.Client, token string) *http.Response {
	s.t.Helper()
	form := strings.NewReader(url.Values{"token": {token}}.Encode())
	answer, err := client.Post("http://"+s.address+"/login", "application/x-www-form-urlencoded", form)
	fleettest.Require(s.t, err)
	answer.Body.Close()
	return answer
}

func TestPeopleLogInOnceWithTheToken(t *testing.T) {
	t.Parallel()
	path := tokenFile(t, goodToken+"\n", 0o640)
	s := serve(t, Options{TokenFile: path}, small)
	if answer, _ := s.ask(noRedirect(), "GET", "/", nil); answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "/login" {
		t.Errorf("nobody: %s", answer.Status)
	}
	if answer, _ := s.ask(noRedirect(), "GET", "/events", nil); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("nobody's stream: %s", answer.Status)
	}
	for _, wrong := range []string{"Bearer " + goodToken + "x", "Bearer", "Basic " + goodToken, goodToken} {
		with := func(r *http.Request) { r.Header.Set("Authorization", wrong) }
		for _, path := range []string{"/", "/events"} {
			if answer, said := s.ask(noRedirect(), "GET", path, with); answer.StatusCode != http.StatusUnauthorized || !strings.Contains(said, "wrong token") {
				t.Errorf("GET %s with %q: %s: %s", path, wrong, answer.Status, said)
			}
		}
	}
	with := func(r *http.Request) { r.Header.Set("Authorization", "bearer "+goodToken) }
	if answer, said := s.ask(noRedirect(), "GET", "/", with); answer.StatusCode != http.StatusOK {
		t.Errorf("with the token: %s: %s", answer.Status, said)
	}
	client := noRedirect()
	client.Jar, _ = cookiejar.New(nil)
	for _, wrong := range []string{"", "x", goodToken + "x", goodToken[:19], strings.Repeat("x", 3000)} {
		if answer := s.login(client, wrong); len(answer.Cookies()) > 0 {
			t.Errorf("token %q: %s", wrong, answer.Status)
		}
	}
	answer := s.login(client, goodToken)
	cookies := answer.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || strings.Contains(cookies[0].Value, goodToken) {
		t.Fatalf("%s: %v", answer.Status, cookies)
	}
	if answer, body := s.ask(client, "GET", "/", nil); answer.StatusCode != http.StatusOK || !strings.Contains(body, "app.js") {
		t.Errorf("with the cookie: %s", answer.Status)
	}
	for at := range cookies[0].Value {
		forged := []byte(cookies[0].Value)
		forged[at] ^= 'A' ^ 'B'
		with := func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: string(forged)}) }
		if answer, _ := s.ask(noRedirect(), "GET", "/events", with); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("a forged cookie, wrong at %d: %s", at, answer.Status)
		}
	}
	watching := s.watch(func(r *http.Request) { r.AddCookie(cookies[0]) })
	if _, ok := watching.next(); !ok {
		t.Fatal("no stream with the cookie")
	}
	fleettest.Require(t, os.WriteFile(path, []byte("another token of the file"), 0o600))
	for ok := true; ok; { // ends with the next look
		_, ok = watching.next()
	}
	if answer, _ := s.ask(client, "GET", "/events", nil); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the token was changed: %s", answer.Status)
	}
}

func TestWrongTokensAreSlowedDownAndDoNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	s := serve(t, Options{TokenFile: tokenFile(t, goodToken, 0o600), Log: slog.New(slog.NewTextHandler(&log, nil))}, small)
	for range attemptsAtOnce {
		if answer := s.login(noRedirect(), "a wrong token, and long"); answer.StatusCode != http.StatusSeeOther {
			t.Fatalf("a wrong token: %s", answer.Status)
		}
	}
	for range 50 {
		if answer := s.login(noRedirect(), goodToken); answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") != "60" {
			t.Fatalf("after %d wrong tokens: %s", attemptsAtOnce, answer.Status)
		}
	}
	with := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodToken) }
	if answer, _ := s.ask(noRedirect(), "GET", "/", with); answer.StatusCode != http.StatusOK {
		t.Errorf("a program with the token: %s", answer.Status)
	}
	if lines := strings.Count(log.String(), "wrong token"); lines != 1 {
		t.Errorf("%d lines of log", lines)
	}
}

func TestASessionEnds(t *testing.T) {
	g := newGuard()
	g.token = &token{path: tokenFile(t, goodToken, 0o600), log: fleettest.Log(t)}
	now := time.Now()
	session, ok := g.session(now)
	if !ok || !g.isSession(session, now.Add(sessionLife-time.Minute)) || g.isSession(session, now.Add(sessionLife+time.Minute)) {
		t.Error("it does not end when it should")
	}
	other := newGuard()
	other.token = g.token
	if other.isSession(session, now) || other.cookie == g.cookie {
		t.Error("another daemon takes it, or its cookie takes the place of this one's")
	}
}

func TestTwoDaemonsOnAHostKeepTheirLogins(t *testing.T) {
	client := noRedirect()
	client.Jar, _ = cookiejar.New(nil)
	var both [2]*served
	for i := range both {
		both[i] = serve(t, Options{TokenFile: tokenFile(t, goodToken+fmt.Sprint(i), 0o600)}, small)
		both[i].login(client, goodToken+fmt.Sprint(i))
	}
	for i, s := range both {
		if answer, _ := s.ask(client, "GET", "/", nil); answer.StatusCode != http.StatusOK {
			t.Errorf("daemon %d: %s", i, answer.Status)
		}
	}
}

func TestByTLSACertificateForCtlLetsIn(t *testing.T) {
	ca, other := fleettest.NewAuthority(t), fleettest.NewAuthority(t)
	own := ca.Issue(pki.Controller, "c1", "127.0.0.1")
	root, err := os.ReadFile(filepath.Join(ca.Dir, "ca.crt"))
	fleettest.Require(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root)
	client := func(dir, name string) *http.Client {
		c := noRedirect()
		config := &tls.Config{RootCAs: pool}
		if name != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
			fleettest.Require(t, err)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		c.Transport = &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		return c
	}
	ca.Issue(pki.Ctl, "alice")
	ca.Issue(pki.Agent, "s1")
	other.Issue(pki.Ctl, "mallory")
	s := serve(t, Options{Address: "0.0.0.0:0", Load: func() (*pki.Credentials, error) { return own, nil }}, small)
	if answer, _ := s.ask(client(ca.Dir, "alice"), "GET", "/", nil); answer.StatusCode != http.StatusOK {
		t.Errorf("alice: %s", answer.Status)
	}
	if answer, _ := s.ask(client("", ""), "GET", "/events", nil); answer.StatusCode != http.StatusForbidden {
		t.Errorf("nobody: %s", answer.Status)
	}
	for dir, name := range map[string]string{ca.Dir: "s1", other.Dir: "mallory"} {
		if answer, err := client(dir, name).Get("https://" + s.address + "/"); err == nil {
			t.Errorf("%s: %s", name, answer.Status)
		}
	}
	if answer, _ := s.ask(client(ca.Dir, "alice"), "GET", "/", withHost("evil.example")); answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("by another name: %s", answer.Status)
	}
	with := serve(t, Options{Address: "0.0.0.0:0", TokenFile: tokenFile(t, goodToken, 0o600), Load: func() (*pki.Credentials, error) { return own, nil }}, small)
	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodToken) }
	if answer, _ := with.ask(client("", ""), "GET", "/", bearer); answer.StatusCode != http.StatusOK {
		t.Errorf("by the token: %s", answer.Status)
	}
	if answer, err := http.Get("http://" + with.address + "/"); err == nil && answer.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %s", answer.Status)
	}
}
