package enrolment

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// controllers are two that share a store and a clock.
type controllers struct {
	*testing.T
	ca      *fleettest.Authority
	all     []*Enrolment
	mirrors []*desired.Mirror
	clock   atomic.Pointer[time.Time]
	nodes   []*ballastv1.NodeStatus // that were issued a certificate by hand
}

func start(t *testing.T) *controllers {
	c := &controllers{T: t, ca: fleettest.NewAuthority(t)}
	now := time.Now()
	c.clock.Store(&now)
	s := storetest.Open(t)
	for i, name := range []string{"c1", "c2"} {
		mirror := desired.NewMirror(s, fleettest.Log(t))
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { mirror.Follow(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
		fleettest.Await(t, "the store is known", func() bool { return mirror.Now() != nil })
		c.mirrors = append(c.mirrors, mirror)
		e := New(Options{Name: name, Address: fmt.Sprintf("10.0.0.%d:6443", 21+i), Mirror: mirror, Writer: desired.NewWriter(mirror),
			Credentials: c.ca.Issue(pki.Controller, name, fmt.Sprintf("10.0.0.%d", 21+i)),
			Live: func() []store.Member {
				return []store.Member{{Name: "c1", Address: "10.0.0.21:6443"}, {Name: "c2", Address: "10.0.0.22:6443"}}
			},
			Nodes: func() ([]*ballastv1.NodeStatus, error) { return c.nodes, nil },
			Now:   func() time.Time { return *c.clock.Load() }, Log: fleettest.Log(t)})
		e.renew = newGate(limit{joinAll, joinAll, atOnceEach})
		c.all = append(c.all, e)
	}
	return c
}

// delegated have a signing authority.
func delegated(t *testing.T) *controllers {
	c := start(t)
	c.delegate(c.ca.Dir)
	return c
}

func (c *controllers) delegate(dir string) *pki.Signing {
	c.Helper()
	s, err := pki.Delegate(dir, 0)
	fleettest.Require(c, err)
	certificate, key, err := s.Encode()
	fleettest.Require(c, err)
	_, err = c.all[0].SetSigningAuthority(c.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key, Force: true})
	fleettest.Require(c, err)
	return s
}

func (c *controllers) pass(d time.Duration) {
	now := c.clock.Load().Add(d)
	c.clock.Store(&now)
}

func (c *controllers) invite(r *ballastv1.InviteRequest) *enrol.Token {
	c.Helper()
	answer, err := c.all[0].Invite(api.WithCaller(c.Context(), api.Caller{Name: "me", Role: "ctl"}), r)
	fleettest.Require(c, err)
	token, err := enrol.ParseToken(answer.Token)
	fleettest.Require(c, err)
	return token
}

// machine is one that wants to join.
type machine struct {
	name, from string
	key        *ecdsa.PrivateKey
}

func newMachine(t testing.TB, name, from string) *machine {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fleettest.Require(t, err)
	return &machine{name, from, key}
}

func (m *machine) request(t testing.TB, token *enrol.Token) *ballastv1.JoinRequest {
	t.Helper()
	request, err := pki.NewRequest(m.key, token.Role, m.name)
	fleettest.Require(t, err)
	return &ballastv1.JoinRequest{Invitation: token.ID, Secret: token.Secret[:], Request: request}
}

func (m *machine) join(t testing.TB, e *Enrolment, token *enrol.Token) ([][]byte, error) {
	t.Helper()
	return e.Join(t.Context(), netip.MustParseAddr(m.from), m.request(t, token))
}

func (c *controllers) joins(m *machine, token *enrol.Token) *x509.Certificate {
	c.Helper()
	chain, err := m.join(c, c.all[1], token)
	fleettest.Require(c, err)
	return c.leaf(chain)
}

func (c *controllers) leaf(chain [][]byte) *x509.Certificate {
	c.Helper()
	leaf, err := x509.ParseCertificate(chain[0])
	fleettest.Require(c, err)
	return leaf
}

func (c *controllers) refused(what string, err error, wanted string) {
	c.Helper()
	if err == nil || !strings.Contains(err.Error(), wanted) {
		c.Errorf("%s: %v, want %q", what, err, wanted)
	}
}

func (c *controllers) left(token *enrol.Token) int {
	c.Helper()
	answer, err := c.all[0].ListInvitations(c.Context(), &ballastv1.ListInvitationsRequest{})
	fleettest.Require(c, err)
	for _, i := range answer.Invitations {
		if i.Id == token.ID {
			return int(i.Left)
		}
	}
	return -1
}

// Promise: A token that is forged, of another invitation, revoked, late or used up makes nobody a node, and the reason is given to who has its secret alone.
func TestWhoHasNoGoodTokenDoesNotJoin(t *testing.T) {
	c := delegated(t)
	m := newMachine(t, "lb1", "10.0.0.31")
	good, other := c.invite(&ballastv1.InviteRequest{Role: "lb", Valid: durationpb.New(2 * time.Hour)}), c.invite(&ballastv1.InviteRequest{Role: "agent"})
	before := c.mirrors[0].Now().Revision
	forged := *good
	forged.Secret[0] ^= 1
	unknown := enrol.NewToken(pki.LB, good.Root, good.Ends)
	mixed := *good
	mixed.ID = other.ID
	for what, token := range map[string]*enrol.Token{"a forged secret": &forged, "an unknown invitation": unknown, "the secret of another": &mixed} {
		_, err := m.join(t, c.all[0], token)
		c.refused(what, err, "no invitation of this token is known")
	}
	short := m.request(t, good)
	short.Secret = short.Secret[:16]
	_, err := c.all[0].Join(t.Context(), netip.MustParseAddr(m.from), short)
	c.refused("half a secret", err, "no invitation of this token is known")
	for _, role := range []pki.Role{pki.Controller, pki.Ctl, pki.Agent} {
		as := *good
		as.Role = role
		_, err := m.join(t, c.all[0], &as)
		c.refused("as "+string(role), err, "is for role lb, not "+string(role))
	}
	if now := c.mirrors[0].Now().Revision; now != before {
		t.Errorf("who was refused has changed the store from %d to %d", before, now)
	}
	c.pass(3 * time.Hour)
	_, err = m.join(t, c.all[0], good)
	c.refused("late", err, "the token ended at "+good.Ends.UTC().Format(time.RFC3339))
	fresh := c.invite(&ballastv1.InviteRequest{Role: "lb"})
	for range 2 { // twice is once
		_, err = c.all[1].RevokeInvitation(t.Context(), &ballastv1.RevokeInvitationRequest{Id: fresh.ID})
		fleettest.Require(t, err)
	}
	_, err = m.join(t, c.all[0], fresh)
	c.refused("revoked", err, "the token was revoked at")
	once := c.invite(&ballastv1.InviteRequest{Role: "lb"})
	c.joins(m, once)
	_, err = newMachine(t, "lb2", "10.0.0.32").join(t, c.all[0], once)
	c.refused("used up", err, "is used up, by lb1")
	many := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 7})
	for i := range 7 {
		c.joins(newMachine(t, fmt.Sprintf("many%d", i), fmt.Sprintf("10.0.0.%d", 40+i)), many)
	}
	_, err = newMachine(t, "lb2", "10.0.0.32").join(t, c.all[0], many)
	c.refused("used up by many", err, "is used up, by many0, many1, many2, many3, many4 and 2 others: ")
}

// Promise: Who asks again with the same key and token gets the same certificate, and that uses the token once.
func TestAnAnswerThatGotLostIsGivenAgain(t *testing.T) {
	c := delegated(t)
	token := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 3})
	m := newMachine(t, "lb1", "10.0.0.31")
	first, err := m.join(t, c.all[0], token)
	fleettest.Require(t, err)
	for i := range 4 {
		again, err := m.join(t, c.all[i%2], token)
		if err != nil || !slices.EqualFunc(first, again, slices.Equal) {
			t.Fatalf("again: %v", err)
		}
	}
	if left := c.left(token); left != 2 {
		t.Errorf("%d uses are left", left)
	}
	c.pass(2 * time.Hour) // the token has ended
	if again, err := m.join(t, c.all[0], token); err != nil || !slices.EqualFunc(first, again, slices.Equal) {
		t.Errorf("after the end of the token: %v", err)
	}
	stranger := newMachine(t, "lb1", "10.0.0.31")
	_, err = stranger.join(t, c.all[0], c.invite(&ballastv1.InviteRequest{Role: "lb"}))
	c.refused("another key", err, "lb1 is the name of lb lb1, which joined from 10.0.0.31")
}

// Promise: Of those who take the last use of a token at once, at several controllers, one joins.
func TestTheLastUseIsTakenOnce(t *testing.T) {
	c := delegated(t)
	for _, uses := range []int{1, 3} {
		token := c.invite(&ballastv1.InviteRequest{Role: "agent", Uses: uint32(uses)})
		var running sync.WaitGroup
		var joined, usedUp atomic.Int64
		for i := range 8 {
			m := newMachine(t, fmt.Sprintf("s%d-%d", uses, i), fmt.Sprintf("10.1.%d.%d", uses, i+1))
			running.Go(func() {
				switch _, err := m.join(t, c.all[i%2], token); {
				case err == nil:
					joined.Add(1)
				case strings.Contains(err.Error(), "is used up"):
					usedUp.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		running.Wait()
		if int(joined.Load()) != uses || int(joined.Load()+usedUp.Load()) != 8 || c.left(token) != 0 {
			t.Errorf("%d joined by %d uses, %d were refused, %d are left", joined.Load(), uses, usedUp.Load(), c.left(token))
		}
	}
}

// Promise: A name is of the first machine that joins by it until its certificate has ended or is revoked.
func TestANameIsOfTheFirstThatTakesIt(t *testing.T) {
	c := delegated(t)
	token := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 100, Valid: durationpb.New(24 * time.Hour)})
	var running sync.WaitGroup
	var joined atomic.Int64
	for i := range 6 {
		m := newMachine(t, "lb1", fmt.Sprintf("10.0.1.%d", i+1))
		running.Go(func() {
			if _, err := m.join(t, c.all[i%2], token); err == nil {
				joined.Add(1)
			} else if !strings.Contains(err.Error(), "lb1 is the name of lb lb1, which joined from 10.0.1.") {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if joined.Load() != 1 || c.left(token) != 99 {
		t.Fatalf("%d joined by one name, %d uses are left", joined.Load(), c.left(token))
	}
	as := func(name string) error {
		_, err := newMachine(t, name, "10.0.2.1").join(t, c.all[0], token)
		return err
	}
	for _, name := range []string{"c1", "c2"} {
		c.refused("a controller's", as(name), name+" is the name of a controller")
	}
	c.nodes = []*ballastv1.NodeStatus{{Role: "agent", Name: "s1", Since: timestamppb.Now()}, {Role: "lb", Name: "lb9", Ready: "lost"}, {Role: "lb", Name: "configured"}}
	c.refused("one that was issued by hand", as("s1"), "whose certificate was issued by hand")
	c.refused("one that is lost", as("lb9"), "ballast ctl node forget lb9")
	for _, name := range []string{"ca", "a/b", "", "-x"} {
		if as(name) == nil {
			t.Errorf("%q joins", name)
		}
	}
	fleettest.Require(t, as("configured"))

	leaf := c.leaf(c.mirrors[0].Now().Enrolled["lb1"].Chain)
	for _, e := range c.all {
		_, err := e.o.Credentials.Revoke([]pki.Revocation{pki.RevocationOf(leaf, time.Now(), "")}, time.Now())
		fleettest.Require(t, err)
	}
	c.joins(newMachine(t, "lb1", "10.0.3.1"), token)
	c.pass(31 * 24 * time.Hour)
	c.joins(newMachine(t, "lb1", "10.0.3.2"), c.invite(&ballastv1.InviteRequest{Role: "lb"}))
}

// Promise: A node's certificate has the address that it joins from, and those that its invitation names, and no other.
func TestANodeSpeaksForItsOwnAddressesAlone(t *testing.T) {
	c := delegated(t)
	desiredtest.Change(t, desiredtest.State{Mirror: c.mirrors[0], Editor: desired.NewEditor(c.all[0].o.Writer)}, desiredtest.AddService(fleettest.Service("web", 1, 2))) // s1 is 10.0.0.1
	fleettest.Await(t, "the service is known", func() bool { return len(c.mirrors[1].Now().Services) == 1 })
	agents := func(r *ballastv1.InviteRequest) *enrol.Token { r.Role = "agent"; return c.invite(r) }
	addresses := func(leaf *x509.Certificate) string { return fmt.Sprint(leaf.IPAddresses) }
	if have := addresses(c.joins(newMachine(t, "s1", "10.0.0.1"), agents(&ballastv1.InviteRequest{}))); have != "[10.0.0.1]" {
		t.Errorf("addresses are %s", have)
	}
	if have := addresses(c.joins(newMachine(t, "x2", "10.0.9.2"), agents(&ballastv1.InviteRequest{Addresses: []string{"10.0.8.2", "2001:db8::2"}}))); have != "[10.0.8.2 2001:db8::2 10.0.9.2]" {
		t.Errorf("addresses are %s", have)
	}
	if have := addresses(c.joins(newMachine(t, "x3", "127.0.0.1"), agents(&ballastv1.InviteRequest{}))); have != "[]" {
		t.Errorf("addresses are %s", have)
	}
	refused := func(what string, m *machine, r *ballastv1.InviteRequest, wanted string) {
		t.Helper()
		_, err := m.join(t, c.all[0], agents(r))
		c.refused(what, err, wanted)
	}
	refused("a controller's address", newMachine(t, "x4", "10.0.0.22"), &ballastv1.InviteRequest{}, "is the address of controller c2")
	refused("another agent's address", newMachine(t, "x4", "10.0.0.1"), &ballastv1.InviteRequest{}, "is the address of agent s1")
	refused("another agent's address, invited", newMachine(t, "x4", "10.0.9.4"), &ballastv1.InviteRequest{Addresses: []string{"10.0.0.1"}}, "is the address of agent s1")
	refused("a server's name elsewhere", newMachine(t, "s2", "10.0.9.4"), &ballastv1.InviteRequest{}, "s2 is a server of service web at another address")
	refused("a name that is an address", newMachine(t, "10.0.0.7", "10.0.9.4"), &ballastv1.InviteRequest{}, "--address 10.0.0.7")
	refused("another name than the invitation's", newMachine(t, "x4", "10.0.9.4"), &ballastv1.InviteRequest{Name: "s2"}, "the token is for s2, not x4")
	c.joins(newMachine(t, "s2", "10.0.9.4"), agents(&ballastv1.InviteRequest{Name: "s2"}))
	c.joins(newMachine(t, "both", "10.0.0.22"), agents(&ballastv1.InviteRequest{Addresses: []string{"10.0.0.22"}}))
	c.joins(newMachine(t, "lb1", "10.0.0.1"), c.invite(&ballastv1.InviteRequest{Role: "lb"})) // an agent's machine may be a load balancer, too

	token, m := agents(&ballastv1.InviteRequest{}), newMachine(t, "x5", "10.0.9.5")
	for what, template := range map[string]*x509.CertificateRequest{
		"--address 10.0.0.99":             {IPAddresses: []net.IP{{10, 0, 0, 99}}},
		"as well: it gets one of its own": {DNSNames: []string{"x5", "www.example.com"}},
	} {
		template.Subject.CommonName, template.Subject.OrganizationalUnit = m.name, []string{"agent"}
		request, err := x509.CreateCertificateRequest(rand.Reader, template, m.key)
		fleettest.Require(t, err)
		_, err = c.all[0].Join(t.Context(), netip.MustParseAddr(m.from), &ballastv1.JoinRequest{Invitation: token.ID, Secret: token.Secret[:], Request: request})
		c.refused("more than its own", err, what)
	}
}

// Promise: A name of the configuration is of who has a token for that name, also once its certificate is revoked.
func TestANameOfTheConfigurationNeedsATokenForIt(t *testing.T) {
	c := delegated(t)
	state := desiredtest.State{Mirror: c.mirrors[0], Editor: desired.NewEditor(c.all[0].o.Writer)}
	desiredtest.Change(t, state, desiredtest.AddService(fleettest.Service("web", 1)))
	desiredtest.Change(t, state, func(f *model.Fleet) { f.Nodes = []model.Node{{Name: "lb1", L2: model.L2{Interface: "eth0"}}} })
	fleettest.Await(t, "the fleet is known", func() bool { now := c.mirrors[1].Now(); return len(now.Services) == 1 && len(now.Nodes.Nodes) == 1 })
	balancers, agents := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 9}), c.invite(&ballastv1.InviteRequest{Role: "agent", Uses: 9})
	refused := func(name string, token *enrol.Token, wanted string) {
		t.Helper()
		_, err := newMachine(t, name, "10.0.0.31").join(t, c.all[0], token)
		c.refused(name+" as "+string(token.Role), err, wanted)
	}
	refused("lb1", balancers, "ballast ctl node invite lb --name lb1")
	refused("lb1", agents, "lb1 is a load balancer of the configuration")
	refused("s1", balancers, "s1 is a server of service web, whose agent has its name")
	if left := c.left(balancers) + c.left(agents); left != 18 {
		t.Errorf("%d uses are left", left)
	}
	c.joins(newMachine(t, "lb2", "10.0.0.32"), balancers) // not of the configuration
	leaf := c.joins(newMachine(t, "lb1", "10.0.0.31"), c.invite(&ballastv1.InviteRequest{Role: "lb", Name: "lb1"}))
	for _, e := range c.all {
		_, err := e.o.Credentials.Revoke([]pki.Revocation{pki.RevocationOf(leaf, time.Now(), "")}, time.Now())
		fleettest.Require(t, err)
	}
	refused("lb1", balancers, "ballast ctl node invite lb --name lb1")
	c.joins(newMachine(t, "lb1", "10.0.0.33"), c.invite(&ballastv1.InviteRequest{Role: "lb", Name: "lb1"}))
}

// Promise: No token that was made before a backup is good once that is restored, whether or not it was used or revoked since; who has
// joined by it may ask again.
func TestARestoredBackupBringsNoTokenBack(t *testing.T) {
	c := delegated(t)
	token, m := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 2}), newMachine(t, "lb1", "10.0.0.31")
	c.joins(m, token)
	fleettest.Await(t, "who joined is known", func() bool { return c.mirrors[0].Now().Enrolled["lb1"] != nil })
	now := c.mirrors[0].Now().Clone()
	admitted := func(m *machine) error {
		request := m.request(t, token)
		wanted, err := pki.ParseRequest(request.Request)
		fleettest.Require(t, err)
		_, _, err = c.all[0].admit(now, *c.clock.Load(), netip.MustParseAddr(m.from), request, &wanted)
		return err
	}
	other := newMachine(t, "lb2", "10.0.0.32")
	now.Revision += store.RevisionBump - 1e6
	fleettest.Require(t, admitted(other))
	now.Revision += 1e6
	c.refused("after the restore", admitted(other), "restored from a backup")
	fleettest.Require(t, admitted(m))
	now.Revisions[documents.InvitationsPrefix+token.ID] = now.Revision // made since
	fleettest.Require(t, admitted(other))
}

func TestInvitationsThatMakeNoSenseAreRefused(t *testing.T) {
	c := start(t)
	_, err := c.all[0].Invite(t.Context(), &ballastv1.InviteRequest{Role: "lb"})
	c.refused("without a signing authority", err, "ballast ctl pki delegate")
	c.delegate(c.ca.Dir)
	for wanted, r := range map[string]*ballastv1.InviteRequest{
		"nodes of roles lb and agent": {Role: "controller"},
		"at most 1000":                {Role: "lb", Uses: 5000},
		"use a time of up to":         {Role: "lb", Valid: durationpb.New(-time.Hour)},
		"certificates for":            {Role: "lb", Life: durationpb.New(time.Second)},
		"those are of one node":       {Role: "lb", Uses: 2, Name: "lb1"},
		"begin with a letter":         {Role: "lb", Name: "../x"},
		"use an IPv4 or IPv6 address": {Role: "lb", Addresses: []string{"127.0.0.1"}},
	} {
		_, err := c.all[0].Invite(t.Context(), r)
		c.refused(fmt.Sprint(r), err, wanted)
	}
	_, err = c.all[0].RevokeInvitation(t.Context(), &ballastv1.RevokeInvitationRequest{Id: "0"})
	c.refused("revoke", err, "no invitation")
	foreign, err := pki.Delegate(fleettest.NewAuthority(t).Dir, 0)
	fleettest.Require(t, err)
	certificate, key, err := foreign.Encode()
	fleettest.Require(t, err)
	_, err = c.all[0].SetSigningAuthority(t.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key})
	c.refused("another fleet's authority", err, "not of this fleet")
	again, err := pki.Delegate(c.ca.Dir, 0)
	fleettest.Require(t, err)
	certificate, key, err = again.Encode()
	fleettest.Require(t, err)
	_, err = c.all[0].SetSigningAuthority(t.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key})
	if len(api.WarningsOf(err)) != 1 {
		t.Errorf("another authority: %v", err)
	}
}

// What is over goes from the store after a while, and names stay known longer than invitations.
func TestWhatIsOverIsForgotten(t *testing.T) {
	c := delegated(t)
	token := c.invite(&ballastv1.InviteRequest{Role: "lb"})
	c.joins(newMachine(t, "lb1", "10.0.0.31"), token)
	if left := c.left(token); left != 0 {
		t.Fatalf("%d uses are left", left)
	}
	for _, step := range []struct {
		after                 time.Duration
		invitations, enrolled int
	}{{time.Hour, 1, 1}, {8 * 24 * time.Hour, 0, 1}, {61 * 24 * time.Hour, 0, 0}} {
		fleettest.Require(t, c.all[0].Keep(t.Context(), time.Now().Add(step.after)))
		if now := c.mirrors[0].Now(); len(now.Invitations) != step.invitations || len(now.Enrolled) != step.enrolled {
			t.Errorf("after %v: %d invitations, %d nodes", step.after, len(now.Invitations), len(now.Enrolled))
		}
	}
}
