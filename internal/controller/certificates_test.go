package controller

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/controller/revoked"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// guardedNode is a node that takes revocations.
type guardedNode struct {
	credentials *pki.Credentials
	streams     *nodeclient.Streams

	mutex sync.Mutex
	told  int // revocations, those that it knew included
}

func joinGuarded(t testing.TB, credentials *pki.Credentials, controllers ...*running) *guardedNode {
	n := &guardedNode{credentials: credentials}
	o := nodeclient.Options{Credentials: credentials, Log: fleettest.Log(t).With("node", credentials.Identity().Name),
		Hello: func() *ballastv1.Hello { return fleettest.Hello(credentials) },
		OnRevocations: func(_ string, message *ballastv1.Revocations) {
			_, err := credentials.Revoke(api.RevocationsFromProto(message.Revocations), time.Now())
			fleettest.Require(t, err)
			n.mutex.Lock()
			defer n.mutex.Unlock()
			n.told += len(message.Revocations)
		}}
	for _, c := range controllers {
		o.Controllers = append(o.Controllers, c.address)
	}
	n.streams = nodeclient.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.streams.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return n
}

func (n *guardedNode) connected(t testing.TB, controllers ...*running) {
	t.Helper()
	fleettest.Await(t, fmt.Sprintf("%s has joined %d", n.credentials.Identity().Name, len(controllers)), func() bool {
		have := n.streams.Connected()
		for _, c := range controllers {
			if len(have) != len(controllers) || !strings.Contains(fmt.Sprint(have), c.address) {
				return false
			}
		}
		return len(have) == len(controllers)
	})
}

func (n *guardedNode) knows(t testing.TB, entries int) {
	t.Helper()
	fleettest.Await(t, fmt.Sprintf("%d entries are known", entries), func() bool { have, _ := n.credentials.RevokedCount(); return have == entries })
}

// revoke asks until the controller has read its store.
func revoke(t testing.TB, client ballastv1connect.FleetClient, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	t.Helper()
	var answer *ballastv1.ChangeResponse
	var err error
	fleettest.Await(t, "the controller has read its store", func() bool {
		answer, err = client.RevokeCertificate(t.Context(), r)
		return connect.CodeOf(err) != connect.CodeUnavailable
	})
	return answer, err
}

func mustRevoke(t testing.TB, client ballastv1connect.FleetClient, r *ballastv1.RevokeCertificateRequest) {
	t.Helper()
	r.Force = true
	answer, err := revoke(t, client, r)
	fleettest.Require(t, err)
	if len(answer.Changes) != 1 || !strings.HasPrefix(answer.Changes[0], "revoked: ") {
		t.Fatalf("changes are %q", answer.Changes)
	}
}

func certificate(t testing.TB, ca *fleettest.Authority, name string) *x509.Certificate {
	t.Helper()
	c, err := pki.ReadCertificate(filepath.Join(ca.Dir, name+".crt"))
	fleettest.Require(t, err)
	return c
}

func TestARevokedNodeKnowsWhyNobodyTakesIt(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	node := joinGuarded(t, ca.Issue(pki.Agent, "s1"), c)
	node.connected(t, c)
	if problem := node.streams.Problem(true); problem != "" {
		t.Errorf("connected: %s", problem)
	}
	mustRevoke(t, c.client(ca.Issue(pki.Ctl, "me")), &ballastv1.RevokeCertificateRequest{Name: "s1", Reason: "the host was stolen"})
	fleettest.Await(t, "it says why", func() bool {
		problem := node.streams.Problem(true)
		return strings.HasPrefix(problem, nodeclient.NoController+": the last state goes on ("+c.address) && strings.Contains(problem, "was revoked at") && strings.Contains(problem, "the host was stolen")
	})
}

func TestANameThatNobodyIsKnownByIsAskedAbout(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	joinGuarded(t, ca.Issue(pki.Agent, "s1"), c).connected(t, c)
	for name, known := range map[string]bool{"s1": true, "s1x": false} {
		_, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: name})
		if warned := strings.Contains(strings.Join(api.WarningsOf(err), "\n"), name+": no node or controller of that name is known"); warned == known {
			t.Errorf("%s: %v", name, err)
		}
		answer, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: name, Force: true})
		if err != nil || len(answer.Changes) != 1 || strings.Contains(answer.Changes[0], "no node or controller of that name is known") == known {
			t.Errorf("%s, if it is meant: %v, %v", name, answer, err)
		}
	}
}

// However its certificate is named, its owner's stream ends within a second, for the reason that was given, and no other begins.
//
// Promise: When a certificate is revoked by serial number or name, its streams and connections are cut within a
// second and others refused.
func TestARevokedNodeIsCutAtOnceAndDoesNotComeBack(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	c, other := startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	revoked := 0
	for name, request := range map[string]func(*x509.Certificate) *ballastv1.RevokeCertificateRequest{
		"name": func(c *x509.Certificate) *ballastv1.RevokeCertificateRequest {
			return &ballastv1.RevokeCertificateRequest{Name: c.Subject.CommonName}
		},
		"serial": func(c *x509.Certificate) *ballastv1.RevokeCertificateRequest {
			return &ballastv1.RevokeCertificateRequest{Serial: pki.SerialOf(c)}
		},
		"file": func(c *x509.Certificate) *ballastv1.RevokeCertificateRequest {
			return &ballastv1.RevokeCertificateRequest{Certificate: c.Raw}
		},
	} {
		t.Run(name, func(t *testing.T) {
			thief, honest := ca.Issue(pki.Agent, "stolen-"+name), joinGuarded(t, ca.Issue(pki.Agent, "honest-"+name), c, other)
			streams := []*fleettest.Conversation{fleettest.Join(t, c.address, thief), fleettest.Join(t, other.address, thief)}
			wish := request(certificate(t, ca, "stolen-"+name))
			wish.Reason = "the host was stolen"
			if _, err := revoke(t, operator, wish); len(api.WarningsOf(err)) != 2 || !strings.Contains(err.Error(), "cannot be taken back") {
				t.Errorf("unless it is meant: %v", err)
			}
			mustRevoke(t, operator, wish)
			for _, stream := range streams {
				if why := stream.Ends(); why.Code() != connect.CodePermissionDenied || !strings.Contains(why.Message(), "was revoked at") || !strings.Contains(why.Message(), wish.Reason) {
					t.Errorf("its stream ends with %v", why)
				}
			}
			for _, at := range []*running{c, other} {
				if _, err := fleettest.Converse(t, at.address, thief, fleettest.Hello(thief)).Receive(); err == nil {
					t.Error("it comes back")
				}
			}
			if answer, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Serial: wish.Serial, Certificate: wish.Certificate, Name: wish.Name, Force: true}); wish.Name == "" && (err != nil || len(answer.Changes) != 0) {
				t.Errorf("once more: %v, %v", answer, err)
			}
			revoked++
			honest.connected(t, c, other)
			honest.knows(t, revoked)
			issueAgain := ca.Issue
			if wish.Name != "" {
				issueAgain = func(role pki.Role, name string, _ ...string) *pki.Credentials { return renewed(t, ca, role, name) }
			}
			fresh := issueAgain(pki.Agent, "stolen-"+name)
			joinGuarded(t, fresh, c, other).connected(t, c, other)
			if wish.Name != "" { // in a later second: it moves the revocation, and keeps the reason
				wish.Reason = ""
				mustRevoke(t, operator, wish)
			}
		})
	}
	list, err := operator.ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{})
	fleettest.Require(t, err)
	for _, r := range list.Revocations {
		if r.Reason != "the host was stolen" || !strings.HasPrefix(r.Name, "stolen-") || r.Ends.AsTime().Before(time.Now()) {
			t.Errorf("the list has %v", r)
		}
	}
	history, err := operator.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	if err != nil || len(list.Revocations) != revoked || !strings.Contains(fmt.Sprint(history.Changes), "the host was stolen") || history.Changes[0].Name != "me" {
		t.Errorf("%d on the list, history %v, %v", len(list.Revocations), history, err)
	}
}

// Promise: Of a machine that is a load balancer and an agent, either's certificates are revoked alone, or both; the answer says which.
func TestARoleOfAMachineIsRevokedAlone(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	asLB := joinGuarded(t, ca.Issue(pki.LB, "m1"), c)
	lbSerial := pki.SerialOf(certificate(t, ca, "m1"))
	asAgent := joinGuarded(t, ca.Issue(pki.Agent, "m1"), c)
	agentSerial := pki.SerialOf(certificate(t, ca, "m1"))
	asLB.connected(t, c)
	asAgent.connected(t, c)
	_, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "m1"})
	if warned := strings.Join(api.WarningsOf(err), "\n"); !strings.Contains(warned, "m1 has several: agent with serial number "+agentSerial+", lb with serial number "+lbSerial+": to revoke those of one role, name it (`--role`)") {
		t.Errorf("of both: %v", err)
	}
	answer, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "m1", Role: "agent", Force: true})
	fleettest.Require(t, err)
	if said := strings.Join(answer.Changes, "\n"); !strings.HasPrefix(said, "revoked: all certificates of agent m1 that were issued up to ") || !strings.HasSuffix(said, ": agent with serial number "+agentSerial) {
		t.Errorf("it says %s", said)
	}
	asAgent.connected(t)
	asLB.connected(t, c)
	asLB.knows(t, 1)
	for what, r := range map[string]*ballastv1.RevokeCertificateRequest{"a role of a serial number": {Serial: lbSerial, Role: "lb", Force: true}, "no role": {Name: "m1", Role: "king", Force: true}} {
		if _, err := revoke(t, operator, r); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	answer, err = revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "m1", Force: true})
	if err != nil || !strings.Contains(answer.Changes[0], ": lb with serial number "+lbSerial) {
		t.Errorf("of all roles: %v, %v", answer, err)
	}
	asLB.connected(t)
	if _, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "me", Role: "agent", Force: true}); err != nil {
		t.Errorf("another role than the operator's own: %v", err)
	}
	if list, err := operator.ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{}); err != nil || len(list.Revocations) != 3 {
		t.Errorf("%v, %v", list, err)
	}
}

// renewed issues a certificate in a later second than this one: revocations of a name are of all up to their second.
func renewed(t testing.TB, ca *fleettest.Authority, role pki.Role, name string) *pki.Credentials {
	t.Helper()
	now := time.Now()
	time.Sleep(now.Truncate(time.Second).Add(time.Second).Sub(now))
	return ca.Issue(role, name)
}

// What a thief has of a controller leads nobody who has the list, also if it is the thief who tells first, and whatever.
func TestARevokedControllerIsLeftByNodesAndBelievedNoMore(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	c1, c2 := startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	lb := joinGuarded(t, ca.Issue(pki.LB, "lb1"), c1, c2)
	lb.connected(t, c1, c2)
	operator := c1.client(ca.Issue(pki.Ctl, "me"))
	mustRevoke(t, operator, &ballastv1.RevokeCertificateRequest{Certificate: certificate(t, ca, "c2").Raw})
	lb.connected(t, c1)

	// The next life of the node begins with what this one has kept, and reaches nobody but the thief.
	next, err := pki.Load(ca.Dir, "lb1", pki.LB)
	fleettest.Require(t, err)
	_, err = next.Revoke(lb.credentials.Revoked(), time.Now())
	fleettest.Require(t, err)
	alone := joinGuarded(t, next, c2)
	fleettest.Await(t, "it has refused the thief", func() bool { _, refused := next.RevokedCount(); return refused > 0 })
	if len(alone.streams.Connected()) != 0 {
		t.Error("it follows the thief")
	}
	// An older list, or an empty one, takes nothing back.
	if news, err := next.Revoke([]pki.Revocation{{Serial: lb.credentials.Revoked()[0].Serial, At: time.Unix(1, 0), Ends: time.Unix(2, 0)}}, time.Now()); err != nil || len(news) != 0 {
		t.Errorf("an entry that has expired is news: %v, %v", news, err)
	}
	if next.Refused(certificate(t, ca, "c2")) == nil {
		t.Error("an older list has taken it back")
	}

	// The controller itself, as it runs still, leads nothing.
	fleettest.Await(t, "c1 divides the services alone", func() bool {
		nodes, err := operator.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return strings.Contains(fmt.Sprint(nodes.Nodes), "its lease has ended")
	})
	// With a new certificate it is one of them again, without a restart.
	ca.Issue(pki.Controller, "c2")
	lb.connected(t, c1, c2)
	fleettest.Await(t, "both live", func() bool {
		nodes, err := operator.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return !strings.Contains(fmt.Sprint(nodes.Nodes), "its lease has ended")
	})
}

func TestNobodyLocksHimselfOutByMistake(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	me := ca.Issue(pki.Ctl, "me")
	operator := c.client(me)
	foreign := fleettest.NewAuthority(t)
	foreign.Issue(pki.Ctl, "me")
	for what, test := range map[string]struct {
		request *ballastv1.RevokeCertificateRequest
		wanted  string
	}{
		"his own, by name":       {&ballastv1.RevokeCertificateRequest{Name: "me"}, "the certificate that you use (me)"},
		"his own, by serial":     {&ballastv1.RevokeCertificateRequest{Serial: pki.SerialOf(certificate(t, ca, "me"))}, "the certificate that you use (me)"},
		"the last controller's":  {&ballastv1.RevokeCertificateRequest{Name: "c1"}, "no controller would be left"},
		"the same, by its file":  {&ballastv1.RevokeCertificateRequest{Certificate: certificate(t, ca, "c1").Raw}, "no controller would be left"},
		"the authority's":        {&ballastv1.RevokeCertificateRequest{Certificate: certificate(t, ca, "ca").Raw}, "that is the authority itself"},
		"another authority's":    {&ballastv1.RevokeCertificateRequest{Certificate: certificate(t, foreign, "me").Raw}, "not from this fleet's authority"},
		"no certificate at all":  {&ballastv1.RevokeCertificateRequest{Certificate: []byte("me")}, "copy it again"},
		"no name":                {&ballastv1.RevokeCertificateRequest{Name: "../me"}, "begin with a letter"},
		"no serial number":       {&ballastv1.RevokeCertificateRequest{Serial: "abc"}, "40 hexadecimal digits"},
		"nothing":                {&ballastv1.RevokeCertificateRequest{}, "give one of name, serial and certificate"},
		"two things at one time": {&ballastv1.RevokeCertificateRequest{Name: "x", Serial: "y"}, "give one of name, serial and certificate"},
	} {
		test.request.Force = true
		if _, err := revoke(t, operator, test.request); err == nil || !strings.Contains(err.Error(), test.wanted) {
			t.Errorf("%s: %v, want %q", what, err, test.wanted)
		}
	}
	agent := ca.Issue(pki.Agent, "a1")
	if _, err := c.client(agent).RevokeCertificate(t.Context(), &ballastv1.RevokeCertificateRequest{Name: "me", Force: true}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("an agent may: %v", err)
	}
	if list, err := operator.ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{}); err != nil || len(list.Revocations) != 0 {
		t.Fatalf("%v, %v", list, err)
	}
	mustRevoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "me", LockOut: true})
	fleettest.Await(t, "he is locked out", func() bool {
		_, err := operator.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		return err != nil
	})
	if _, err := c.client(renewed(t, ca, pki.Ctl, "me")).GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err != nil {
		t.Errorf("with a new certificate: %v", err)
	}
}

// A controller that hears nothing of the store when somebody is revoked learns it when it is back.
//
// Promise: A controller that was cut off from the store during a revocation learns of it when it is back.
func TestAControllerThatWasCutOffLearnsWhoWasRevoked(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	way := &desiredtest.FaultyStore{Store: s}
	c, cutOff := startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", way, nil)
	operator := ca.Issue(pki.Ctl, "me")
	apply(t, cutOff.client(operator), fleettest.Service("web", 1))
	thief := ca.Issue(pki.Agent, "s1")
	stream := fleettest.Join(t, cutOff.address, thief)
	way.Set(true)
	mustRevoke(t, c.client(operator), &ballastv1.RevokeCertificateRequest{Name: "s1"})
	if list, err := cutOff.client(operator).ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{}); err != nil || len(list.Revocations) != 0 || list.Unconfirmed == "" {
		t.Errorf("cut off: %v, %v", list, err)
	}
	way.Set(false)
	if why := stream.Ends(); !strings.Contains(why.Message(), "was revoked at") {
		t.Errorf("the stream ends with %v", why)
	}
}

// Two at once, through two controllers: both are carried out. The same twice is done once.
func TestRevocationsAtOnceAreAllCarriedOut(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	controllers := []*running{startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)}
	me := ca.Issue(pki.Ctl, "me")
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range 10 {
		for _, c := range controllers {
			all.Go(func() {
				answer, err := revoke(t, c.client(me), &ballastv1.RevokeCertificateRequest{Serial: fmt.Sprintf("%040x", i+1), Force: true})
				if err != nil {
					t.Error(err)
					return
				}
				done.Add(int64(len(answer.Changes)))
			})
		}
	}
	if all.Wait(); done.Load() != 10 {
		t.Errorf("%d changes", done.Load())
	}
	await.Nil(t, "what the other one has written is read", func() error {
		list, err := controllers[0].client(me).ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{})
		if err != nil || len(list.Revocations) != 10 {
			return fmt.Errorf("%d entries, %v", len(list.GetRevocations()), err)
		}
		return nil
	})
}

// fill has the store know n revocations.
func fill(t testing.TB, s store.Store, n int) {
	t.Helper()
	var stored []store.Document
	for i := range n {
		r := pki.Revocation{Serial: fmt.Sprintf("%040x", i+1), Name: fmt.Sprint("server-", i), Role: pki.Agent, At: time.Now(), Ends: time.Now().Add(time.Hour), Reason: "a test"}
		value, err := json.Marshal(r)
		fleettest.Require(t, err)
		stored = append(stored, store.Document{Key: documents.RevokedPrefix + r.Key(), Value: value})
	}
	_, err := s.Commit(t.Context(), stored)
	fleettest.Require(t, err)
}

func TestAFullListIsKnownToAllAndTakesNoMore(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	fill(t, s, pki.RevokedMax)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	lb := joinGuarded(t, ca.Issue(pki.LB, "lb1"), c)
	lb.knows(t, pki.RevokedMax)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	if _, err := revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "lb1", Force: true}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	lb.connected(t, c)
	lb.mutex.Lock()
	defer lb.mutex.Unlock()
	if lb.told != pki.RevokedMax {
		t.Errorf("it was told %d entries", lb.told)
	}
}

// Of two operators who revoke the certificates of both controllers at once, one is asked whether he means it; so is who asks a controller
// that is revoked itself.
//
// Promise: The last controllers are not revoked without `--force`, also by two operators at once.
func TestTwoOperatorsDoNotRevokeAllControllersByMistake(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	c, other := startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	me := ca.Issue(pki.Ctl, "me")
	fleettest.Await(t, "both live", func() bool {
		for _, one := range []*running{c, other} {
			answer, err := one.client(me).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
			if err != nil || strings.Count(fmt.Sprint(answer), `role:"controller"`) != 2 {
				return false
			}
		}
		return true
	})
	var running sync.WaitGroup
	errs := make([]error, 2)
	for i, at := range []*ballastv1.RevokeCertificateRequest{{Name: "c2", Force: true}, {Name: "c1", Force: true}} {
		asked := []ballastv1connect.FleetClient{c.client(me), other.client(me)}[i]
		running.Go(func() { _, errs[i] = asked.RevokeCertificate(t.Context(), at) })
	}
	running.Wait()
	refused := 0
	for _, err := range errs {
		if err != nil && strings.Contains(err.Error(), "no controller would be left") {
			refused++
		}
	}
	if list, err := c.client(me).ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{}); refused != 1 {
		t.Errorf("%v: %v, %v", errs, list, err)
	}
}

// Who may revoke by his certificate cannot take all the room: root on a controller's host revokes him still.
//
// Promise: A thief who fills the list of revocations can still be revoked by root on a controller's host, and a
// node whose list he fills himself reports it.
// Also held by TestAListThatMakesNoSenseIsTakenAsFarAsItDoes.
func TestAThiefWhoFillsTheListCanBeRevoked(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	fill(t, s, pki.RevokedMax-revoked.Reserve)
	dir := t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", s, func(o *Options) { o.RunDir = dir })
	thief := c.client(ca.Issue(pki.Ctl, "thief"))
	if _, err := revoke(t, thief, &ballastv1.RevokeCertificateRequest{Name: "lb1", Force: true}); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "root on a controller's host") {
		t.Errorf("one more: %v", err)
	}
	root := api.NewClient(api.SocketPath(dir, "c1")).Fleet()
	_, err := root.RevokeCertificate(t.Context(), &ballastv1.RevokeCertificateRequest{Name: "thief", Force: true})
	fleettest.Require(t, err)
	fleettest.Await(t, "the thief is refused", func() bool {
		_, err := thief.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		return err != nil
	})
}
