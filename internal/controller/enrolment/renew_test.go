package enrolment

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// renew asks for another certificate as who has one, for a new key.
func (c *controllers) renew(shown *x509.Certificate, role pki.Role, name string, change func(*x509.CertificateRequest)) (*x509.Certificate, error) {
	c.Helper()
	return c.renewFor(newMachine(c, name, "").key, []*x509.Certificate{shown}, role, name, change)
}

func (c *controllers) renewFor(key *ecdsa.PrivateKey, shown []*x509.Certificate, role pki.Role, name string, change func(*x509.CertificateRequest)) (*x509.Certificate, error) {
	c.Helper()
	template := &x509.CertificateRequest{}
	template.Subject.CommonName, template.Subject.OrganizationalUnit = name, []string{string(role)}
	if change != nil {
		change(template)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	fleettest.Require(c, err)
	answer, err := c.all[1].Renew(context.WithValue(c.Context(), shownKey{}, shown), &ballastv1.RenewRequest{Request: request})
	if err != nil {
		return nil, err
	}
	return c.leaf(answer.Chain), nil
}

// Promise: A certificate is renewed for who shows it, for the same role, name and addresses, and for nobody whose is revoked or was issued by hand.
func TestOnlyTheOwnerOfACertificateRenewsIt(t *testing.T) {
	c := delegated(t)
	leaf := c.joins(newMachine(t, "lb1", "10.0.0.31"), c.invite(&ballastv1.InviteRequest{Role: "lb", Life: durationpb.New(10 * 24 * time.Hour)}))
	_, err := c.renew(leaf, pki.LB, "lb1", nil)
	c.refused("early", err, "is not due yet")
	c.pass(7 * 24 * time.Hour)
	byHand := c.ca.Issue(pki.LB, "lb2").Own()
	for what, test := range map[string]struct {
		shown  *x509.Certificate
		role   pki.Role
		name   string
		change func(*x509.CertificateRequest)
		wanted string
	}{
		"by hand":         {byHand, pki.LB, "lb2", nil, "was issued by hand"},
		"another name":    {leaf, pki.LB, "lb3", nil, "needs a new token"},
		"another role":    {leaf, pki.Agent, "lb1", nil, "needs a new token"},
		"a greater role":  {leaf, pki.Controller, "lb1", nil, "needs a new token"},
		"another address": {leaf, pki.LB, "lb1", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 32}} }, "those need a new token"},
		"another host":    {leaf, pki.LB, "lb1", func(r *x509.CertificateRequest) { r.DNSNames = []string{"lb3"} }, "those need a new token"},
	} {
		_, err := c.renew(test.shown, test.role, test.name, test.change)
		c.refused(what, err, test.wanted)
	}
	next, err := c.renew(leaf, pki.LB, "lb1", nil)
	fleettest.Require(t, err)
	if next.Equal(leaf) || fmt.Sprint(next.IPAddresses) != "[10.0.0.31]" || pki.LifeOf(next).Round(time.Minute) != 10*24*time.Hour || !next.NotAfter.After(leaf.NotAfter) {
		t.Errorf("the next is of %v, for %v, until %v", next.IPAddresses, pki.LifeOf(next), next.NotAfter)
	}
	_, err = newMachine(t, "lb1", "10.0.0.77").join(t, c.all[0], c.invite(&ballastv1.InviteRequest{Role: "lb"}))
	c.refused("the name is still taken", err, "lb1 is the name of")
	for _, e := range c.all {
		_, err = e.o.Credentials.Revoke([]pki.Revocation{pki.RevocationOf(leaf, time.Now(), "")}, time.Now())
		fleettest.Require(t, err)
	}
	_, err = c.renew(leaf, pki.LB, "lb1", nil)
	c.refused("revoked", err, "is revoked")
}

// Promise: Only the newest certificate of a name is renewed, and who asks again with the same key gets the same one.
func TestACopyOfACertificateIsNotRenewed(t *testing.T) {
	c := delegated(t)
	var logged strings.Builder
	c.all[1].o.Log = slog.New(slog.NewTextHandler(&logged, nil))
	first := c.joins(newMachine(t, "lb1", "10.0.0.31"), c.invite(&ballastv1.InviteRequest{Role: "lb"}))
	c.pass(21 * 24 * time.Hour)
	key := newMachine(t, "lb1", "").key
	second, err := c.renewFor(key, []*x509.Certificate{first}, pki.LB, "lb1", nil)
	fleettest.Require(t, err)
	if again, err := c.renewFor(key, []*x509.Certificate{first}, pki.LB, "lb1", nil); err != nil || !again.Equal(second) {
		t.Errorf("the answer got lost, and again: %v", err)
	}
	if strings.Contains(logged.String(), "WARN") {
		t.Errorf("logged is %s", logged.String())
	}
	_, err = c.renew(first, pki.LB, "lb1", nil)
	c.refused("a copy", err, "is not the newest of that name: two hosts have its certificate")
	if !strings.Contains(logged.String(), `level=WARN msg="certificate not renewed" role=lb name=lb1`) {
		t.Errorf("logged is %s", logged.String())
	}
	c.pass(21 * 24 * time.Hour)
	third, err := c.renew(second, pki.LB, "lb1", nil)
	if err != nil || third.Equal(second) {
		t.Errorf("the newest: %v", err)
	}
	fleettest.Require(t, c.all[0].o.Writer.Update(t.Context(), func(now *documents.Snapshot) ([]store.Document, error) {
		return []store.Document{now.Delete(documents.EnrolledPrefix + "lb1")}, nil
	}))
	c.pass(21 * 24 * time.Hour)
	_, err = c.renew(third, pki.LB, "lb1", nil)
	c.refused("unknown", err, "no certificate of lb1 is known")
}

// Promise: What is revoked in the store is not renewed, also where the controller has not heard of it.
func TestWhatTheStoreHasRevokedIsNotRenewed(t *testing.T) {
	c := start(t)
	signing := c.delegate(c.ca.Dir)
	token := c.invite(&ballastv1.InviteRequest{Role: "lb", Uses: 3})
	leaf := map[string]*x509.Certificate{}
	for i, name := range []string{"lb1", "lb2", "lb3"} {
		leaf[name] = c.joins(newMachine(t, name, fmt.Sprintf("10.0.0.%d", 31+i)), token)
	}
	c.delegate(c.ca.Dir)
	c.pass(21 * 24 * time.Hour)
	revoke := func(r pki.Revocation) {
		_, _, err := c.all[0].o.Writer.Record(t.Context(), false, func(now *documents.Snapshot) ([]string, []store.Document, error) {
			document, err := now.Put(documents.RevokedPrefix+r.Key(), &r)
			return []string{"revoked"}, []store.Document{document}, err
		})
		fleettest.Require(t, err)
	}
	refused := func(name string) {
		t.Helper()
		_, err := c.renewFor(newMachine(t, name, "").key, []*x509.Certificate{leaf[name], signing.Certificate}, pki.LB, name, nil)
		c.refused(name, err, "is revoked")
	}
	revoke(pki.RevocationOf(leaf["lb1"], *c.clock.Load(), ""))
	refused("lb1")
	revoke(pki.Revocation{Name: "lb2", At: *c.clock.Load()})
	refused("lb2")
	revoke(pki.RevocationOf(signing.Certificate, *c.clock.Load(), ""))
	refused("lb3")
}

func TestWithoutAGoodSigningAuthorityOperatorsHearOfIt(t *testing.T) {
	c := start(t)
	if problems := c.all[0].Problems(); len(problems) > 0 {
		t.Errorf("without any: %q", problems)
	}
	s := c.delegate(c.ca.Dir)
	if problems := c.all[0].Problems(); len(problems) > 0 {
		t.Errorf("with one: %q", problems)
	}
	_, err := c.all[0].o.Credentials.Revoke([]pki.Revocation{pki.RevocationOf(s.Certificate, time.Now(), "")}, time.Now())
	fleettest.Require(t, err)
	if problems := fmt.Sprint(c.all[0].Problems()); !strings.Contains(problems, "was revoked at") {
		t.Errorf("revoked: %q", problems)
	}
	_, err = c.all[0].Invite(t.Context(), &ballastv1.InviteRequest{Role: "lb"})
	if c.refused("revoked", err, "was revoked at"); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Error(err)
	}
	c.delegate(c.ca.Dir)
	c.pass(pki.DefaultAuthorityLife - soon + time.Hour)
	if problems := fmt.Sprint(c.all[0].Problems()); !strings.Contains(problems, "the signing authority ends on") {
		t.Errorf("near its end: %q", problems)
	}
}
