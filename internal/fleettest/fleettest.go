// Package fleettest has what tests of engines, hubs and controllers share: certificates, nodes that say what a test wants, services.
package fleettest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Deadline is how long anything may take.
const Deadline = 30 * time.Second

// Require ends the test if there is an error.
func Require(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Await fails the test unless what is wanted comes true in time.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline, look := time.After(Deadline), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("not in %v: %s", Deadline, what)
		}
	}
}

// Authority issues certificates in a directory of its own.
type Authority struct {
	Dir string
	t   testing.TB
}

// NewAuthority returns one whose folder goes with the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t.TempDir(), t}
	Require(t, pki.Init(a.Dir, pki.DefaultAuthorityLife, false))
	return a
}

// Issue returns a certificate of that role and name.
func (a *Authority) Issue(role pki.Role, name string, addresses ...string) *pki.Credentials {
	a.t.Helper()
	request := pki.Request{Role: role, Name: name, Force: true}
	for _, address := range addresses {
		request.Addresses = append(request.Addresses, netip.MustParseAddr(address))
	}
	Require(a.t, pki.Issue(a.Dir, request))
	credentials, err := pki.Load(a.Dir, name, role)
	Require(a.t, err)
	return credentials
}

// Log writes to the test's output.
func Log(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// Conversation is a stream of a node that does what a test wants.
type Conversation struct {
	t      testing.TB
	Stream *connect.BidiStreamForClientSimple[ballastv1.FromNode, ballastv1.ToNode]
	Cancel func()
}

// Converse begins a stream, with that Hello if there is one.
func Converse(t testing.TB, address string, credentials *pki.Credentials, hello *ballastv1.Hello) *Conversation {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: credentials.Client(), Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window}}
	client := ballastv1connect.NewControlClient(&http.Client{Transport: transport}, "https://"+address, connect.WithGRPC())
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Join(ctx)
	Require(t, err)
	c := &Conversation{t, stream, func() { cancel(); transport.CloseIdleConnections() }}
	t.Cleanup(c.Cancel)
	if hello != nil {
		c.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: hello}})
	}
	return c
}

// window is how many bytes a peer can be sent that reads nothing.
const window = 256 << 10

// Join says Hello as the owner of the certificate and awaits the welcome.
func Join(t testing.TB, address string, credentials *pki.Credentials) *Conversation {
	t.Helper()
	c := Converse(t, address, credentials, Hello(credentials))
	if c.Next().GetWelcome().GetController() == "" {
		t.Fatal("no welcome")
	}
	return c
}

// Hello is that of the owner of the certificate.
func Hello(credentials *pki.Credentials) *ballastv1.Hello {
	identity := credentials.Identity()
	return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(identity.Role), Name: identity.Name, Version: "9.9.9"}
}

// Send may fail: why is what receiving says.
func (c *Conversation) Send(message *ballastv1.FromNode) error { return c.Stream.Send(message) }

// Receive waits for the next message or the end.
func (c *Conversation) Receive() (*ballastv1.ToNode, error) {
	defer time.AfterFunc(Deadline, c.Cancel).Stop()
	return c.Stream.Receive()
}

// Next passes over signs of life, and over where tunnels come from, see Sources.
func (c *Conversation) Next() *ballastv1.ToNode {
	c.t.Helper()
	for {
		message, err := c.Receive()
		Require(c.t, err)
		if message.GetSources() == nil && message.GetAlive() == nil {
			return message
		}
	}
}

// Sources waits until where tunnels come from is as wanted.
func (c *Conversation) Sources(what string, wanted func(*ballastv1.TunnelSources) bool) {
	c.t.Helper()
	var last *ballastv1.TunnelSources
	for {
		message, err := c.Receive()
		if err != nil {
			c.t.Fatalf("%s: %v, after %v", what, err, last)
		}
		if last = message.GetSources(); last != nil && wanted(last) {
			return
		}
	}
}

// State is the next message, which is one.
func (c *Conversation) State() *ballastv1.State {
	c.t.Helper()
	message := c.Next()
	if message.GetState() == nil {
		c.t.Fatalf("no state but %v", message)
	}
	return message.GetState()
}

// Ends returns why the stream ends, whatever comes before.
func (c *Conversation) Ends() *connect.Error {
	c.t.Helper()
	for {
		if _, err := c.Receive(); err != nil {
			var why *connect.Error
			if !errors.As(err, &why) {
				c.t.Fatalf("the stream ended with %v", err)
			}
			return why
		}
	}
}

// Service has one server for each id, 10.0.0.ID named sID.
func Service(name string, ids ...int) engine.ServiceView {
	s := model.NewService()
	s.Name, s.VIP, s.Ports = name, netip.MustParseAddr("198.51.100.1"), []uint16{80}
	for _, id := range ids {
		server := model.NewServer()
		server.Name, server.ID, server.Address = fmt.Sprintf("s%d", id), uint16(id), netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)})
		s.Servers = append(s.Servers, server)
	}
	s.ApplyDefaults()
	return engine.ServiceView{Service: s}
}

// Keys are of epoch 1.
func Keys() model.Keys {
	return model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}}
}

// View is a desired state of services without tiers.
func View(revision uint64, services ...engine.ServiceView) *engine.View {
	return &engine.View{Revision: revision, Keys: Keys(), Services: services}
}

// AddTiers makes a fleet of two tiers.
func AddTiers(f *model.Fleet) {
	f.Nodes = []model.Node{{Name: "lb1", Tier: model.TierFirst}, {Name: "lb2", Tier: model.TierSecond, Address: netip.MustParseAddr("192.0.2.2"), ID: 1},
		{Name: "lb3", Tier: model.TierSecond, Address: netip.MustParseAddr("192.0.2.3"), ID: 2}}
	f.NodeHealth = model.Health{Check: model.CheckHTTP, Port: 9435, Path: "/metrics"}
}

// Tiered is a view with lb1 of the first tier, and lb2 and lb3 of the second, with ids 1 and 2.
func Tiered(revision uint64, down []uint16, services ...engine.ServiceView) *engine.View {
	var fleet model.Fleet
	AddTiers(&fleet)
	fleet.ApplyDefaults()
	v := View(revision, services...)
	v.Nodes, v.NodeHealth = fleet.Nodes, fleet.NodeHealth
	v.Second = &engine.ServiceView{Service: *fleet.SecondTier(), Down: down}
	return v
}

// LoadedService is a Service that follows load, or whose dispatch is another one.
func LoadedService(name string, dispatch model.Dispatch, ids ...int) engine.ServiceView {
	v := Service(name, ids...)
	v.Service.Dispatch = dispatch
	return v
}

// ManyIDs are 1 to n.
func ManyIDs(n int) (ids []int) {
	for i := range n {
		ids = append(ids, i+1)
	}
	return ids
}
