package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

const testDeadline = 30 * time.Second

func require(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await fails the test unless what is wanted comes true in time.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline, look := time.After(testDeadline), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("not in %v: %s", testDeadline, what)
		}
	}
}

// authority issues certificates in a directory of its own.
type authority struct {
	t   testing.TB
	dir string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t, t.TempDir()}
	require(t, pki.Init(a.dir, pki.DefaultAuthorityLife, false))
	return a
}

func (a *authority) issue(role pki.Role, name string, addresses ...string) *pki.Credentials {
	a.t.Helper()
	request := pki.Request{Role: role, Name: name, Force: true}
	for _, address := range addresses {
		request.Addresses = append(request.Addresses, netip.MustParseAddr(address))
	}
	require(a.t, pki.Issue(a.dir, request))
	credentials, err := pki.Load(a.dir, name, role)
	require(a.t, err)
	return credentials
}

// serveHub answers by TLS on loopback until the test ends, or stop is called.
func serveHub(t testing.TB, hub *Hub, config *tls.Config) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require(t, err)
	mux := http.NewServeMux()
	mux.Handle(hub.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, config, mux) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require(t, <-ended)
	}
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// ignored takes reports and forgets them.
type ignored struct{}

func (ignored) Traffic(string, *ballastv1.TrafficReport) {}
func (ignored) Health(string, *ballastv1.HealthReport)   {}
func (ignored) Load(pki.Identity, *ballastv1.LoadReport) {}
func testLog(t testing.TB) *slog.Logger                  { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
func testHub(t testing.TB, change func(o *HubOptions)) *Hub {
	o := HubOptions{Name: "c1", Version: "1.2.3", Reports: ignored{}, Log: testLog(t)}
	if change != nil {
		change(&o)
	}
	return NewHub(o)
}

// conversation is a stream of a node that does what a test wants.
type conversation struct {
	t      testing.TB
	stream *connect.BidiStreamForClientSimple[ballastv1.FromNode, ballastv1.ToNode]
	cancel func()
}

func converse(t testing.TB, address string, credentials *pki.Credentials, hello *ballastv1.Hello) *conversation {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: credentials.Client(), Protocols: protocols}
	client := ballastv1connect.NewControlClient(&http.Client{Transport: transport}, "https://"+address, connect.WithGRPC())
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Join(ctx)
	require(t, err)
	c := &conversation{t, stream, func() { cancel(); transport.CloseIdleConnections() }}
	t.Cleanup(c.cancel)
	if hello != nil {
		c.send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: hello}})
	}
	return c
}

// join says Hello as the owner of the certificate and awaits the welcome.
func join(t testing.TB, address string, credentials *pki.Credentials) *conversation {
	t.Helper()
	c := converse(t, address, credentials, hello(credentials))
	if c.next().GetWelcome().GetController() == "" {
		t.Fatal("no welcome")
	}
	return c
}

func hello(credentials *pki.Credentials) *ballastv1.Hello {
	identity := credentials.Identity()
	return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(identity.Role), Name: identity.Name, Version: "9.9.9"}
}

// send may fail: why is what receiving says.
func (c *conversation) send(message *ballastv1.FromNode) error { return c.stream.Send(message) }

// receive waits for the next message or the end.
func (c *conversation) receive() (*ballastv1.ToNode, error) {
	defer time.AfterFunc(testDeadline, c.cancel).Stop()
	return c.stream.Receive()
}

// next passes over where tunnels come from, see sources.
func (c *conversation) next() *ballastv1.ToNode {
	c.t.Helper()
	for {
		message, err := c.receive()
		require(c.t, err)
		if message.GetSources() == nil {
			return message
		}
	}
}

// sources waits until where tunnels come from is as wanted.
func (c *conversation) sources(what string, wanted func(*ballastv1.TunnelSources) bool) {
	c.t.Helper()
	var last *ballastv1.TunnelSources
	for {
		message, err := c.receive()
		if err != nil {
			c.t.Fatalf("%s: %v, after %v", what, err, last)
		}
		if last = message.GetSources(); last != nil && wanted(last) {
			return
		}
	}
}

func (c *conversation) state() *ballastv1.State {
	c.t.Helper()
	message := c.next()
	if message.GetState() == nil {
		c.t.Fatalf("no state but %v", message)
	}
	return message.GetState()
}

// ends returns why the stream ends, whatever comes before.
func (c *conversation) ends() *connect.Error {
	c.t.Helper()
	for {
		if _, err := c.receive(); err != nil {
			var why *connect.Error
			if !asConnect(err, &why) {
				c.t.Fatalf("the stream ended with %v", err)
			}
			return why
		}
	}
}

// testService has one server for each id, 10.0.0.ID named sID.
func testService(name string, ids ...int) ServiceView {
	s := model.NewService()
	s.Name, s.VIP, s.Ports = name, netip.MustParseAddr("198.51.100.1"), []uint16{80}
	for _, id := range ids {
		server := model.NewServer()
		server.Name, server.ID, server.Address = fmt.Sprintf("s%d", id), uint16(id), netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)})
		s.Servers = append(s.Servers, server)
	}
	s.ApplyDefaults()
	return ServiceView{Service: s}
}

func testKeys() model.Keys {
	return model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}}
}

func view(revision uint64, services ...ServiceView) *View {
	return &View{Revision: revision, Keys: testKeys(), Services: services}
}

func counted(counter prometheus.Counter) float64 {
	var metric dto.Metric
	if err := counter.Write(&metric); err != nil {
		panic(err)
	}
	return metric.Counter.GetValue()
}
