package consul

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ballast-lb/ballast/internal/discovery/discoverytest"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// asking is the service web, asked at an agent of the test.
func asking(t *testing.T, c *discoverytest.Consul) (s *Source, dir string) {
	dir = t.TempDir()
	c.Allow(t, dir, model.DefaultAgent, "")
	s = New(model.ServerSource{From: model.SourceConsul, Service: "web"}, dir)
	s.answerWithin = 500 * time.Millisecond
	return s, dir
}

// show is an answer in a line: *weight, and d drains.
func show(answer discovery.Answer) string {
	if answer.Err != nil {
		return "error: " + answer.Err.Error()
	}
	var list []string
	for _, f := range answer.Servers {
		text := fmt.Sprintf("%s:%d*%d", f.Address, f.Port, f.Weight)
		if f.Draining {
			text += "d"
		}
		list = append(list, text)
	}
	return strings.Join(append(list, answer.Notes...), " ")
}

func expect(t *testing.T, s *Source, want string) {
	t.Helper()
	if answer, _ := s.Ask(t.Context()); show(answer) != want {
		t.Errorf("have %s, want %s", show(answer), want)
	}
}

func TestInstancesAreTakenByTheirChecks(t *testing.T) {
	one := discoverytest.Instance
	change := func(e *api.ServiceEntry, f func(*api.ServiceEntry)) *api.ServiceEntry { f(e); return e }
	for name, test := range map[string]struct {
		entries []*api.ServiceEntry
		want    string
	}{
		"passing, warning, critical": {[]*api.ServiceEntry{one("10.0.0.1", 80, "passing"), one("10.0.0.2", 80, "warning"), one("10.0.0.3", 80, "critical")},
			"10.0.0.1:80*3 10.0.0.2:80*1 10.0.0.3:80*3d"},
		"the worst of several checks": {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "passing"), func(e *api.ServiceEntry) {
			e.Checks = append(e.Checks, &api.HealthCheck{Status: "critical"}, &api.HealthCheck{Status: "passing"})
		})}, "10.0.0.1:80*3d"},
		"maintenance of a node": {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "passing"), func(e *api.ServiceEntry) {
			e.Checks = append(e.Checks, &api.HealthCheck{CheckID: api.NodeMaint, Status: "critical"})
		})}, "10.0.0.1:80*3d"},
		"no check":                 {[]*api.ServiceEntry{change(one("10.0.0.1", 80, ""), func(e *api.ServiceEntry) { e.Checks = nil })}, "10.0.0.1:80*3"},
		"an unknown state":         {[]*api.ServiceEntry{one("10.0.0.1", 80, "well")}, "10.0.0.1:80*3d"},
		"warnings weigh nothing":   {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "warning"), func(e *api.ServiceEntry) { e.Service.Weights.Warning = 0 })}, "10.0.0.1:80*0"},
		"no weights":               {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "warning"), func(e *api.ServiceEntry) { e.Service.Weights = api.AgentWeights{} })}, "10.0.0.1:80*1"},
		"weights out of range":     {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "passing"), func(e *api.ServiceEntry) { e.Service.Weights.Passing = 1 << 30 })}, fmt.Sprintf("10.0.0.1:80*%d", model.MaxWeight)},
		"a negative weight":        {[]*api.ServiceEntry{change(one("10.0.0.1", 80, "passing"), func(e *api.ServiceEntry) { e.Service.Weights.Passing = -1 })}, "10.0.0.1:80*0"},
		"IPv6":                     {[]*api.ServiceEntry{one("2001:db8::1", 80, "passing")}, "2001:db8::1:80*3"},
		"IPv4 as IPv6":             {[]*api.ServiceEntry{one("::ffff:10.0.0.1", 80, "passing")}, "10.0.0.1:80*3"},
		"the address of the node":  {[]*api.ServiceEntry{one("", 80, "passing")}, "192.0.2.1:80*3"},
		"nodes with the same name": {[]*api.ServiceEntry{one("10.0.0.1", 80, "passing"), one("10.0.0.2", 80, "passing")}, "10.0.0.1:80*3 10.0.0.2:80*3"},
		"no node":                  {[]*api.ServiceEntry{change(one("", 80, "passing"), func(e *api.ServiceEntry) { e.Node, e.Service.ID = nil, "a" })}, `instance "a": "" port 80 is not an address`},
		"nothing":                  {[]*api.ServiceEntry{nil, {}}, ""},
		"a name in place of an address": {[]*api.ServiceEntry{one("web.example.com", 80, "passing"), one("10.0.0.2", 80, "passing")},
			`10.0.0.2:80*3 instance "web.example.com": "web.example.com" port 80 is not an address`},
		"a zone":       {[]*api.ServiceEntry{one("fe80::1%eth0", 80, "passing")}, `instance "fe80::1%eth0": "fe80::1%eth0" port 80 is not an address`},
		"a wrong port": {[]*api.ServiceEntry{one("10.0.0.1", 65536, "passing"), one("10.0.0.2", -1, "passing")}, `instance "10.0.0.1": "10.0.0.1" port 65536 is not an address instance "10.0.0.2": "10.0.0.2" port -1 is not an address`},
	} {
		c := discoverytest.NewConsul(t, "127.0.0.1:0")
		c.Set(test.entries...)
		s, _ := asking(t, c)
		t.Run(name, func(t *testing.T) { expect(t, s, test.want) })
	}
}

func TestQueriesWaitForAChange(t *testing.T) {
	c := discoverytest.NewConsul(t, "127.0.0.1:0")
	c.Set(discoverytest.Instance("10.0.0.1", 80, "passing"))
	s, _ := asking(t, c)
	s.of.Datacenter, s.of.Tag = "east", "v 2&x=y"
	expect(t, s, "10.0.0.1:80*3")
	query := c.Queries()[0].URL
	if q := query.Query(); query.Path != "/v1/health/service/web" || q.Get("dc") != "east" || q.Get("tag") != "v 2&x=y" || q.Get("index") != "" || q.Get("x") != "" {
		t.Errorf("asked %v", query)
	}
	answers := make(chan string)
	ask := func() {
		answer, _ := s.Ask(t.Context())
		answers <- show(answer)
	}
	go ask()
	await(t, "it waits for a change", func() bool { q := c.Queries(); return len(q) == 2 && q[1].URL.Query().Get("index") == "8" })
	c.Set(discoverytest.Instance("10.0.0.2", 80, "passing"))
	if have := <-answers; have != "10.0.0.2:80*3" {
		t.Errorf("after a change: %s", have)
	}
	go ask()
	await(t, "it waits for the next one", func() bool { return len(c.Queries()) == 3 })
	c.SetIndex(3) // Consul's servers were restored from an older copy
	if have := <-answers; have != "10.0.0.2:80*3" || s.index != 0 {
		t.Errorf("the index goes back: %s, index %d", have, s.index)
	}
	expect(t, s, "10.0.0.2:80*3") // at once
	if s.index != 3 || c.Queries()[3].URL.Query().Get("index") != "" {
		t.Errorf("goes on with index %d after %v", s.index, c.Queries()[3].URL)
	}
	c.SetIndex(0) // no query may say so
	answer, wait := s.Ask(t.Context())
	if show(answer) != "10.0.0.2:80*3" || wait != unindexed {
		t.Errorf("without an index: %s, next after %v", show(answer), wait)
	}
	c.Change(func(w http.ResponseWriter, _ *http.Request) bool {
		discoverytest.Head(w, 0)
		w.Header().Set("X-Consul-Index", "-1")
		io.WriteString(w, "[]")
		return true
	})
	if answer, wait := s.Ask(t.Context()); answer.Err != nil || wait != unindexed {
		t.Errorf("a wrong index: %s, next after %v", show(answer), wait)
	}
	c.Change(nil)
	c.SetIndex(9)
	expect(t, s, "10.0.0.2:80*3")
	ctx, cancel := context.WithCancel(t.Context())
	asked := len(c.Queries())
	go func() {
		answer, _ := s.Ask(ctx)
		answers <- show(answer)
	}()
	await(t, "it waits again", func() bool { return len(c.Queries()) > asked })
	cancel()
	if have := <-answers; !strings.Contains(have, "context canceled") {
		t.Errorf("ended: %s", have)
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so", what)
		}
	}
}

// Promise: An agent that answers wrongly, slowly or not at all gives an error, which says nothing that a server has said; afterwards all is well.
func TestBadAnswersAreErrors(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirection is followed, with token %q", r.Header.Get("X-Consul-Token"))
	}))
	defer elsewhere.Close()
	body := func(text string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			discoverytest.Head(w, 8)
			io.WriteString(w, text)
			return true
		}
	}
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { http.Error(w, "SECRET", code); return true }
	}
	header := func(key, value string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			discoverytest.Head(w, 8)
			w.Header().Set(key, value)
			io.WriteString(w, "[]")
			return true
		}
	}
	for what, test := range map[string]struct {
		change func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"500":               {status(500), "agent of Consul default: status 500"},
		"403":               {status(403), "status 403: its token needs service:read and node:read"},
		"404":               {status(404), "status 404"},
		"429":               {status(429), "status 429"},
		"a page":            {body("<html>SECRET"), "invalid character '<'"},
		"half a list":       {body(`[{"Service": {"ID": "SECRET`), "unexpected EOF"},
		"an object":         {body(`{"Service": "SECRET"}`), "cannot unmarshal object"},
		"a port of letters": {body(`[{"Service": {"Port": "http"}}]`), "cannot unmarshal string"},
		"a huge answer":     {body("[" + strings.Repeat(`{"Node": {"Node": "SECRET"}},`, maxAnswer/28+1)), fmt.Sprintf("an answer of more than %d bytes", maxAnswer)},
		"filtered":          {header("X-Consul-Results-Filtered-By-ACLs", "true"), "the answer lacks what its token may not read"},
		"a redirection": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			return true
		}, "status 302"},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, "context deadline exceeded"},
		"an answer that never ends": {func(w http.ResponseWriter, r *http.Request) bool {
			body("[")(w, r)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}, "context deadline exceeded"},
		"an end in the middle": {func(w http.ResponseWriter, r *http.Request) bool { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(what, func(t *testing.T) {
			c := discoverytest.NewConsul(t, "127.0.0.1:0")
			c.Set(discoverytest.Instance("10.0.0.1", 80, "passing"))
			c.Change(test.change)
			s, _ := asking(t, c)
			if answer, _ := s.Ask(t.Context()); answer.Err == nil || !strings.Contains(answer.Err.Error(), test.want) || strings.Contains(answer.Err.Error(), "SECRET") {
				t.Errorf("says %s, want %s", show(answer), test.want)
			}
			c.Change(nil)
			expect(t, s, "10.0.0.1:80*3")
		})
	}
	c := discoverytest.NewConsul(t, "127.0.0.1:0")
	s, dir := asking(t, c)
	discoverytest.Write(t, filepath.Join(dir, "consul/default.yaml"), "address: http://127.0.0.1:1\n")
	if answer, _ := s.Ask(t.Context()); answer.Err == nil || !strings.Contains(answer.Err.Error(), "connection refused") {
		t.Errorf("nobody listens: %s", show(answer))
	}
}

// An empty list is no error here: that it takes no server away, internal/machine/discovery sees to.
func TestEmptyAnswersAreWhatIsSaid(t *testing.T) {
	for _, text := range []string{"[]", "null", "[null]", "[{}]"} {
		c := discoverytest.NewConsul(t, "127.0.0.1:0")
		c.Change(func(w http.ResponseWriter, _ *http.Request) bool {
			discoverytest.Head(w, 8)
			io.WriteString(w, text)
			return true
		})
		s, _ := asking(t, c)
		answer, _ := s.Ask(t.Context())
		if err := new(discovery.Tracker).Take(answer, time.Now()); answer.Err != nil || err == nil {
			t.Errorf("%s: %s, taken: %v", text, show(answer), err)
		}
	}
}

func TestTokensAreReadAnewAndOnlyForTheirAgent(t *testing.T) {
	c := discoverytest.NewConsul(t, "127.0.0.1:0")
	c.Set(discoverytest.Instance("10.0.0.1", 80, "passing"))
	c.SetToken("second")
	s, dir := asking(t, c)
	expect(t, s, "error: agent of Consul default: status 403: its token needs service:read and node:read")
	c.Allow(t, dir, model.DefaultAgent, "token_file: token\n")
	token := filepath.Join(dir, "consul/token")
	expect(t, s, "error: agent of Consul default: open "+token+": no such file or directory")
	discoverytest.Write(t, token, "first\n")
	expect(t, s, "error: agent of Consul default: status 403: its token needs service:read and node:read")
	discoverytest.Write(t, token, "second\n")
	expect(t, s, "10.0.0.1:80*3")
	discoverytest.Write(t, token, "fir\nst\n")
	if answer, _ := s.Ask(t.Context()); answer.Err == nil || strings.Contains(answer.Err.Error(), "st\n") {
		t.Errorf("two lines: %s", show(answer))
	}
	other := discoverytest.NewConsul(t, "127.0.0.1:0")
	other.Allow(t, dir, "other", "")
	o := New(model.ServerSource{From: model.SourceConsul, Service: "web", Agent: "other"}, dir)
	o.Ask(t.Context())
	if q := other.Queries(); len(q) != 1 || q[0].Header.Get("X-Consul-Token") != "" {
		t.Errorf("another agent sees %v", q[0].Header)
	}
	if err := os.Remove(filepath.Join(dir, "consul/default.yaml")); err != nil {
		t.Fatal(err)
	}
	asked := len(c.Queries())
	if answer, _ := s.Ask(t.Context()); answer.Err == nil || !strings.Contains(answer.Err.Error(), "must allow the agent of Consul default") || len(c.Queries()) != asked {
		t.Errorf("allowed no more: %s", show(answer))
	}
}

// Promise: A fleet can name agents of Consul that the controller's host allows, and no others: no URL, no secret, no other file.
func TestAgentsAreThoseOfTheHost(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret.yaml")
	discoverytest.Write(t, secret, "SECRET")
	discoverytest.Write(t, filepath.Join(dir, "consul/token"), "SECRET")
	if err := os.Symlink(secret, filepath.Join(dir, "consul/out.yaml")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"../secret": "path escapes from parent", "out": "path escapes from parent", "/etc/passwd": "", "token": "no such file", "none": "no such file", "a\x00b": "invalid argument",
	} {
		if _, err := readAgent(filepath.Join(dir, "consul"), name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                                      "write address: https://...",
		"[]":                                    "",
		"address: 127.0.0.1:8500":               "it is not the URL of an agent",
		"address: ftp://127.0.0.1":              "it is not the URL of an agent",
		"address: unix:///run/consul.sock":      "it is not the URL of an agent",
		"address: http://u:SECRET@127.0.0.1":    "it is not the URL of an agent",
		"address: http://127.0.0.1/x":           "it is not the URL of an agent",
		"address: http://127.0.0.1\nca_file: x": "http has no certificates",
		"address: https://a\ncert_file: x":      "belong together",
		"addr_ess: http://127.0.0.1":            "did you mean address?",
		"token_file: x":                         "it is not the URL of an agent",
	} {
		discoverytest.Write(t, filepath.Join(dir, "consul/a.yaml"), text)
		if _, err := readAgent(filepath.Join(dir, "consul"), "a"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestAgentsAreAuthenticated(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		discoverytest.Head(w, 8)
		io.WriteString(w, `[{"Service": {"Address": "10.0.0.1", "Port": 80}}]`)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are to fail
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	agent := filepath.Join(dir, "consul/default.yaml")
	discoverytest.Write(t, agent, "address: "+server.URL)
	s := New(model.ServerSource{From: model.SourceConsul, Service: "web"}, dir)
	if answer, _ := s.Ask(t.Context()); answer.Err == nil || !strings.Contains(answer.Err.Error(), "certificate signed by unknown authority") {
		t.Errorf("an unknown authority: %s", show(answer))
	}
	discoverytest.Write(t, filepath.Join(dir, "consul/ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	discoverytest.Write(t, agent, "address: "+server.URL+"\nca_file: ca.pem")
	expect(t, s, "10.0.0.1:80*1")
	discoverytest.Write(t, agent, "address: "+strings.Replace(server.URL, "127.0.0.1", "127.0.0.2", 1)+"\nca_file: ca.pem")
	if answer, _ := s.Ask(t.Context()); answer.Err == nil || !strings.Contains(answer.Err.Error(), "127.0.0.2") {
		t.Errorf("another host: %s", show(answer))
	}
}
