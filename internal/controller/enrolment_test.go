package controller

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// sayings is a log that a test reads.
type sayings struct {
	mutex sync.Mutex
	said  bytes.Buffer
}

func (s *sayings) Write(line []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.said.Write(line)
}

func (s *sayings) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.said.String()
}

// inviting is a controller that signs for nodes, and who invites them.
func inviting(t *testing.T, ca *fleettest.Authority, s store.Store, log io.Writer) (*running, ballastv1connect.EnrolmentClient) {
	t.Helper()
	c := startController(t, ca, "c1", "127.0.0.1:0", s, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), log), nil)) })
	client := api.NewEnrolmentClient([]string{c.address}, ca.Issue(pki.Ctl, "me").Client())
	signing, err := pki.Delegate(ca.Dir, 0)
	fleettest.Require(t, err)
	certificate, key, err := signing.Encode()
	fleettest.Require(t, err)
	fleettest.Await(t, "the controller has read its store", func() bool {
		_, err := client.SetSigningAuthority(t.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key})
		return err == nil
	})
	return c, client
}

func invite(t *testing.T, client ballastv1connect.EnrolmentClient, r *ballastv1.InviteRequest) *enrol.Token {
	t.Helper()
	answer, err := client.Invite(t.Context(), r)
	fleettest.Require(t, err)
	token, err := enrol.ParseToken(answer.Token)
	fleettest.Require(t, err)
	return token
}

// enrolled asks for a certificate as a machine does, and installs it.
func enrolled(t *testing.T, address string, token *enrol.Token, name string) (*pki.Credentials, error) {
	t.Helper()
	dir := t.TempDir()
	key, err := pki.NextKey(dir, name)
	fleettest.Require(t, err)
	joined, err := enrol.Join(t.Context(), address, token, name, key, "1.2.3")
	if err != nil {
		return nil, err
	}
	fleettest.Require(t, errors.Join(pki.InstallRoot(dir, joined.Root, false), pki.Install(dir, name, joined.Chain)))
	return pki.Load(dir, name, token.Role)
}

// Promise: Without a certificate a controller's port serves the request to join, and nothing else.
func TestWithoutACertificateNothingButJoiningIsServed(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c, client := inviting(t, ca, storetest.Open(t), io.Discard)
	token := invite(t, client, &ballastv1.InviteRequest{Role: "lb"})
	if _, err := enrolled(t, c.address, token, "lb1"); err != nil {
		t.Fatalf("who joins is refused: %v", err)
	}
	paths := []string{ballastv1connect.FleetGetFleetProcedure, ballastv1connect.EnrolmentInviteProcedure, ballastv1connect.RenewalRenewProcedure, ballastv1connect.LeavingDrainProcedure, ballastv1connect.LeavingLeaveProcedure, ballastv1connect.ControlJoinProcedure,
		ballastv1connect.ControllersListControllersProcedure, "/raft", "/v1/joining", "/"}
	certified := ca.Issue(pki.Ctl, "other").Client()
	for _, protocols := range [][]string{nil, {"h2"}, {"http/1.1"}, {enrol.Protocol, "h2"}, {"h2", enrol.Protocol}, {enrol.Protocol}} {
		for _, config := range []*tls.Config{{InsecureSkipVerify: true}, certified} {
			alone, has := len(protocols) == 1 && protocols[0] == enrol.Protocol, config == certified
			for _, path := range paths {
				config := config.Clone()
				config.NextProtos = protocols
				connection, err := tls.Dial("tcp", c.address, config)
				if err != nil {
					if has && !alone && protocols != nil {
						t.Errorf("%v with a certificate: %v", protocols, err)
					}
					continue
				}
				connection.SetDeadline(time.Now().Add(fleettest.Deadline))
				io.WriteString(connection, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
				if connection.ConnectionState().NegotiatedProtocol == "h2" {
					connection.Close() // with a certificate; without one the handshake has failed, which the next line would say
					if !has {
						if _, err := connection.Read(make([]byte, 1)); err == nil {
							t.Errorf("%v: HTTP/2 without a certificate", protocols)
						}
					}
					continue
				}
				answer, _ := io.ReadAll(connection)
				connection.Close()
				if served := bytes.HasPrefix(answer, []byte("HTTP/1.1")); served != (has && !alone) {
					t.Errorf("%v, certificate %v: %s is answered with %q", protocols, has, path, answer)
				}
			}
		}
	}
	refused := (*enrol.Refused)(nil)
	fleettest.Await(t, "who asks too often is told to wait", func() bool {
		_, err := enrolled(t, c.address, token, "lb2")
		return errors.As(err, &refused) && refused.Again
	})
}

// Promise: A machine that joins by a token is a node like any other, until its certificate is revoked, which lets its name be taken again.
func TestAMachineJoinsByAToken(t *testing.T) {
	ca, log := fleettest.NewAuthority(t), &sayings{}
	s := storetest.Open(t)
	c, client := inviting(t, ca, s, log)
	other := startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	token := invite(t, client, &ballastv1.InviteRequest{Role: "lb", Uses: 2})
	lb, err := enrolled(t, c.address, token, "lb1")
	fleettest.Require(t, err)
	for _, controller := range []*running{c, other} {
		fleettest.Join(t, controller.address, lb).Cancel()
	}
	if _, err := enrolled(t, other.address, token, "lb1"); err == nil || !strings.Contains(err.Error(), "lb1 is the name of lb lb1") {
		t.Errorf("another of the name: %v", err)
	}
	stream := fleettest.Join(t, c.address, lb)
	mustRevoke(t, c.client(ca.Issue(pki.Ctl, "me")), &ballastv1.RevokeCertificateRequest{Serial: pki.SerialOf(lb.Own())})
	if why := stream.Ends(); why.Code() != connect.CodePermissionDenied || !strings.Contains(why.Message(), "ballast join --again") {
		t.Errorf("revoked, its stream ends with %v", why)
	}
	next, err := enrolled(t, c.address, token, "lb1")
	fleettest.Require(t, err)
	fleettest.Join(t, c.address, next)
	if _, err := enrolled(t, c.address, token, "lb2"); err == nil || !strings.Contains(err.Error(), "the token is used up, by lb1, lb1") {
		t.Errorf("with a token that is used up: %v", err)
	}
	forged := *token
	forged.Secret[5] ^= 1
	if _, err := enrolled(t, c.address, &forged, "lb2"); err == nil || !strings.Contains(err.Error(), "no invitation of this token is known") {
		t.Errorf("with a forged token: %v", err)
	}
	foreign := *token
	foreign.Root[0] ^= 1
	if _, err := enrolled(t, c.address, &foreign, "lb2"); !errors.Is(err, pki.ErrOtherRoot) {
		t.Errorf("with another fleet's token: %v", err)
	}
	history, err := c.client(ca.Issue(pki.Ctl, "me")).ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	told := ""
	for _, change := range history.Changes {
		told += change.Name + " " + strings.Join(change.Changes, " ") + "\n"
	}
	for _, wanted := range []string{"signing authority: serial number", "me invitation " + token.ID + ": role lb, 2 uses", "lb1 lb lb1: joined from 127.0.0.1 by invitation " + token.ID} {
		if !strings.Contains(told, wanted) {
			t.Errorf("the history has no %q: %s", wanted, told)
		}
	}
	if said := log.String(); strings.Contains(said, token.String()) || strings.Contains(said, string(token.Secret[:])) || !strings.Contains(said, "reason=join") {
		t.Errorf("the log: %s", said)
	}
	if documents, _, err := s.Load(t.Context()); err != nil || strings.Contains(contentOf(documents), string(token.Secret[:])) || len(documents) == 0 {
		t.Errorf("the store has the secret, or cannot be read: %v", err)
	}
}

func contentOf(documents []store.Document) (all string) {
	for _, d := range documents {
		all += string(d.Value)
	}
	return all
}

// Nobody gets a secret, nor anybody's key, who only pretends to be a controller: before it is sent anything it has to prove that it is one.
func TestWhoIsNoControllerIsSentNothing(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	root := ca.Issue(pki.Controller, "c1").Root()
	for _, impostor := range []*pki.Credentials{ca.Issue(pki.LB, "lb1"), fleettest.NewAuthority(t).Issue(pki.Controller, "c1")} {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", impostor.Joining(enrol.Protocol))
		fleettest.Require(t, err)
		received := make(chan []byte, 1)
		go func() {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			defer connection.Close()
			enrol.Send(connection, &ballastv1.JoinGreeting{Controller: "c1", Time: timestamppb.Now()}) // fails where it is not believed
			said, _ := bufio.NewReader(connection).Peek(1)
			received <- said
		}()
		if _, err := enrolled(t, listener.Addr().String(), enrol.NewToken(pki.LB, pki.HashOf(root), time.Now()), "lb9"); err == nil {
			t.Error("it is believed")
		}
		if said := <-received; len(said) > 0 {
			t.Errorf("it is sent %q", said)
		}
		listener.Close()
	}
}

// An operator of role lb or agent invites nobody, and no operator renews a node's certificate.
func TestNodesInviteNobody(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c, client := inviting(t, ca, storetest.Open(t), io.Discard)
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		_, err := api.NewEnrolmentClient([]string{c.address}, ca.Issue(role, "node").Client()).Invite(t.Context(), &ballastv1.InviteRequest{Role: "lb"})
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("role %s: %v", role, err)
		}
	}
	for _, role := range []pki.Role{pki.Ctl, pki.Controller} {
		transport := &http.Transport{TLSClientConfig: ca.Issue(role, "someone").Client()}
		t.Cleanup(transport.CloseIdleConnections)
		_, err := ballastv1connect.NewRenewalClient(&http.Client{Transport: transport}, "https://"+c.address).Renew(context.Background(), &ballastv1.RenewRequest{})
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("role %s renews: %v", role, err)
		}
	}
	node, err := enrolled(t, c.address, invite(t, client, &ballastv1.InviteRequest{Role: "agent"}), "s1")
	fleettest.Require(t, err)
	_, err = api.NewEnrolmentClient([]string{c.address}, node.Client()).Invite(t.Context(), &ballastv1.InviteRequest{Role: "lb"})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a node that has joined: %v", err)
	}
}

// Promise: When the signing authority is revoked, every node that it has signed for is cut off, and joins again by another one.
func TestNodesAreCutOffWithTheSigningAuthority(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c, client := inviting(t, ca, storetest.Open(t), io.Discard)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	lb, err := enrolled(t, c.address, invite(t, client, &ballastv1.InviteRequest{Role: "lb"}), "lb1")
	fleettest.Require(t, err)
	stream, byHand := fleettest.Join(t, c.address, lb), fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb2"))
	_, err = revoke(t, operator, &ballastv1.RevokeCertificateRequest{Name: "c1", LockOut: true})
	_, rest, found := strings.Cut(strings.Join(api.WarningsOf(err), "\n"), "if it was stolen, revoke that, too: `ballast ctl pki revoke ")
	serial, _, _ := strings.Cut(rest, "`")
	if !found || len(serial) != 40 {
		t.Fatalf("whoever revokes a controller does not hear of the signing authority: %v", err)
	}
	_, err = revoke(t, operator, &ballastv1.RevokeCertificateRequest{Serial: serial})
	if warnings := strings.Join(api.WarningsOf(err), "\n"); !strings.Contains(warnings, "all nodes that joined by a token are cut off") {
		t.Errorf("warnings are %q", warnings)
	}
	mustRevoke(t, operator, &ballastv1.RevokeCertificateRequest{Serial: serial})
	if why := stream.Ends(); why.Code() != connect.CodePermissionDenied || !strings.Contains(why.Message(), "the signing authority of") {
		t.Errorf("its stream ends with %v", why)
	}
	if _, err := client.Invite(t.Context(), &ballastv1.InviteRequest{Role: "lb"}); err == nil || !strings.Contains(err.Error(), "was revoked at") {
		t.Errorf("machines are invited: %v", err)
	}
	signing, err := pki.Delegate(ca.Dir, 0)
	fleettest.Require(t, err)
	certificate, key, err := signing.Encode()
	fleettest.Require(t, err)
	_, err = client.SetSigningAuthority(t.Context(), &ballastv1.SetSigningAuthorityRequest{Certificate: certificate, Key: key})
	fleettest.Require(t, err)
	next, err := enrolled(t, c.address, invite(t, client, &ballastv1.InviteRequest{Role: "lb"}), "lb1")
	fleettest.Require(t, err)
	fleettest.Join(t, c.address, next)
	fleettest.Require(t, byHand.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{}}}))
}
