package renewal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/enrolment"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// renewing is a controller with a clock of its own.
type renewing struct {
	*testing.T
	ca      *fleettest.Authority
	own     *pki.Credentials
	address string
	signs   *enrolment.Enrolment
	behind  atomic.Int64 // its clock, in nanoseconds
	nodes   byte
}

func start(t *testing.T) *renewing {
	c := &renewing{T: t, ca: fleettest.NewAuthority(t)}
	c.own = c.ca.Issue(pki.Controller, "c1")
	mirror := desired.NewMirror(storetest.Open(t), fleettest.Log(t))
	c.signs = enrolment.New(enrolment.Options{Name: "c1", Mirror: mirror, Writer: desired.NewWriter(mirror), Credentials: c.own, Live: func() []store.Member { return nil },
		Nodes: func() ([]*ballastv1.NodeStatus, error) { return nil, nil }, Log: fleettest.Log(t), Now: func() time.Time { return time.Now().Add(-time.Duration(c.behind.Load())) }})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	c.address = listener.Addr().String()
	mux := http.NewServeMux()
	mux.Handle(c.signs.ForNodes())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { mirror.Follow(ctx) })
	running.Go(func() { hub.Serve(ctx, listener, c.own, nil, mux, nil) })
	t.Cleanup(func() { cancel(); running.Wait() })
	fleettest.Await(t, "the store is known", func() bool { return mirror.Now() != nil })
	c.delegate()
	return c
}

func (c *renewing) delegate() *pki.Signing {
	c.Helper()
	signing, err := pki.Delegate(c.ca.Dir, 0)
	fleettest.Require(c, err)
	certificate, key, err := signing.Encode()
	fleettest.Require(c, err)
	_, err = c.signs.SetSigningAuthority(c.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key, Force: true})
	fleettest.Require(c, err)
	return signing
}

// node is one that joined some time ago.
func (c *renewing) node(name string, ago time.Duration) *pki.Credentials {
	c.Helper()
	c.behind.Store(int64(ago))
	answer, err := c.signs.Invite(c.Context(), &ballastv1.InviteRequest{Role: "agent"})
	fleettest.Require(c, err)
	token, err := enrol.ParseToken(answer.Token)
	fleettest.Require(c, err)
	dir := c.TempDir()
	key, err := pki.NextKey(dir, name)
	fleettest.Require(c, err)
	request, err := pki.NewRequest(key, token.Role, name)
	fleettest.Require(c, err)
	chain, err := c.signs.Join(c.Context(), netip.AddrFrom4([4]byte{10, 0, 0, 11 + c.nodes}), &ballastv1.JoinRequest{Invitation: token.ID, Secret: token.Secret[:], Request: request})
	fleettest.Require(c, err)
	c.nodes++
	fleettest.Require(c, errors.Join(pki.InstallRoot(dir, c.own.Root(), false), pki.Install(dir, name, chain)))
	c.behind.Store(0)
	credentials, err := pki.Load(dir, name, pki.Agent)
	fleettest.Require(c, err)
	return credentials
}

const day = 24 * time.Hour

// Promise: A node that joined by a token renews its certificate at two thirds of its life, with a new key, without a restart.
func TestANodeRenewsItsCertificate(t *testing.T) {
	c := start(t)
	credentials := c.node("s1", 21*day)
	before := credentials.Own()
	r := New(credentials, []string{c.address}, fleettest.Log(t))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer running.Wait()
	defer cancel()
	fleettest.Await(t, "it has another certificate", func() bool { return !credentials.Own().Equal(before) })
	after := credentials.Own()
	if fmt.Sprint(after.PublicKey) == fmt.Sprint(before.PublicKey) || fmt.Sprint(after.IPAddresses) != "[10.0.0.11]" || pki.LifeOf(after).Round(time.Minute) != 30*day || time.Until(after.NotAfter) < 29*day {
		t.Errorf("addresses %v, ends %v, of %v", after.IPAddresses, after.NotAfter, pki.LifeOf(after))
	}
	if problems := append(r.Problems(), credentials.Warnings(time.Now())...); len(problems) > 0 {
		t.Errorf("problems are %q", problems)
	}
	if who := credentials.Identity(); who.Name != "s1" || who.Role != pki.Agent {
		t.Errorf("it is %+v", who)
	}
}

// Nothing is asked of anybody where nothing is due: nobody listens at the address.
func TestNothingIsRenewedEarly(t *testing.T) {
	c := start(t)
	for _, credentials := range []*pki.Credentials{c.node("s1", 19*day), c.ca.Issue(pki.Agent, "by-hand")} {
		before := credentials.Own()
		r := New(credentials, []string{"127.0.0.1:1"}, fleettest.Log(t))
		r.look(t.Context(), time.Now())
		if problems := r.Problems(); len(problems) > 0 || !credentials.Own().Equal(before) {
			t.Errorf("%s: %q", credentials.Identity().Name, problems)
		}
	}
}

// Promise: A renewal that fails is a problem of the node until one succeeds.
func TestARenewalThatFailsIsAProblemUntilOneSucceeds(t *testing.T) {
	c := start(t)
	credentials := c.node("s1", 21*day)
	signing := c.delegate()
	_, err := c.own.Revoke([]pki.Revocation{pki.RevocationOf(signing.Certificate, time.Now(), "")}, time.Now())
	fleettest.Require(t, err)
	before := credentials.Own()
	r := New(credentials, []string{c.address}, fleettest.Log(t))
	r.look(t.Context(), time.Now())
	if problems := strings.Join(r.Problems(), "; "); !strings.Contains(problems, "not renewed: the signing authority was revoked") || !strings.Contains(problems, "it ends on "+before.NotAfter.Format(time.RFC3339)) {
		t.Fatalf("problems are %q", problems)
	}
	c.delegate()
	r.look(t.Context(), time.Now())
	if problems := r.Problems(); len(problems) > 0 || credentials.Own().Equal(before) {
		t.Errorf("problems are %q", problems)
	}
	revoked := c.node("s2", 21*day)
	_, err = c.own.Revoke([]pki.Revocation{{Name: "s2", At: time.Now()}}, time.Now())
	fleettest.Require(t, err)
	other := New(revoked, []string{c.address}, fleettest.Log(t))
	if other.look(t.Context(), time.Now()); !strings.Contains(strings.Join(other.Problems(), ""), "not renewed") {
		t.Errorf("revoked: %q", other.Problems())
	}
}
