package controller

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// impostor listens where a controller was, with any certificate, and counts what it is sent behind the handshake.
type impostor struct {
	listener    net.Listener
	connections atomic.Int64
	bytes       atomic.Int64
}

// Write implements io.Writer.
func (i *impostor) Write(received []byte) (int, error) {
	i.bytes.Add(int64(len(received)))
	return len(received), nil
}

func impersonate(t *testing.T, address string, credentials *pki.Credentials) *impostor {
	t.Helper()
	_, certificate, key := credentials.Files()
	pair, err := tls.LoadX509KeyPair(certificate, key)
	fleettest.Require(t, err)
	i := &impostor{}
	fleettest.Await(t, "the address is free", func() bool { i.listener, err = net.Listen("tcp", address); return err == nil })
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	go func() {
		for {
			connection, err := i.listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				io.Copy(i, tls.Server(connection, config)) // until the other side has had enough
				i.connections.Add(1)
			}()
		}
	}()
	t.Cleanup(func() { i.listener.Close() })
	return i
}

// member is the number by which etcd knows a controller, in hex.
func member(t *testing.T, k *keeper, credentials *pki.Credentials, name string) string {
	t.Helper()
	_, answer := fetch(t, k, credentials, "/members", "")
	for part := range strings.SplitSeq(answer, "},") {
		if strings.Contains(part, `"name":"`+name+`"`) {
			var id uint64
			_, err := fmt.Sscanf(part[strings.Index(part, `"id":`):], `"id":%d`, &id)
			fleettest.Require(t, err)
			return fmt.Sprintf("%x", id)
		}
	}
	t.Fatalf("%s is not among %s", name, answer)
	return ""
}

// fetch asks a controller's store for a path, in the name of a member.
func fetch(t *testing.T, k *keeper, credentials *pki.Credentials, path, from string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+k.address+path, nil)
	fleettest.Require(t, err)
	if from != "" {
		request.Header.Set("X-Server-From", from)
	}
	return answerTo(t, credentials, request)
}

// answerTo is what a controller answers to whoever has the credentials.
func answerTo(t *testing.T, credentials *pki.Credentials, request *http.Request) (status int, answer string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: credentials.Client(), DisableKeepAlives: true}}
	response, err := client.Do(request)
	fleettest.Require(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	fleettest.Require(t, err)
	return response.StatusCode, string(text)
}

// The store is every key of the fleet: whoever is at a controller's address is sent it only as the controller of that name.
//
// Promise: Stores send to and answer only the controller of the right name, and a revoked controller leaves the
// store in the same act.
// Also held by TestARevokedControllerLeavesTheStoreInTheSameAct.
func TestNobodyButTheControllerOfThatNameIsSentAByteOfTheStore(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	c2 := startKeeper(t, ca, "c2", t.TempDir(), freeAddress(t), c1.address)
	awaitControllers(t, controllersOf(operator, c1.address), "c1 voter alive", "c2 voter alive")
	own, err := pki.Load(ca.Dir, "c2", pki.Controller)
	fleettest.Require(t, err)
	id := member(t, c1, own, "c2")
	c2.stop()
	for _, role := range []pki.Role{pki.Agent, pki.LB, pki.Ctl, pki.Etcd, pki.Controller} {
		credentials := ca.Issue(role, "other-"+string(role), "127.0.0.1")
		i := impersonate(t, c2.address, credentials)
		fleettest.Await(t, "it is connected to, again and again", func() bool { return i.connections.Load() >= 5 })
		if n := i.bytes.Load(); n != 0 {
			t.Errorf("one with a certificate of role %s was sent %d bytes", role, n)
		}
		i.listener.Close()
		if role == pki.Etcd { // no peer of ours: the port for nodes does not let it in
			continue
		}
		for _, path := range []string{"/raft/stream/message/" + id, "/raft/stream/msgapp/" + id, "/raft/snapshot", "/members"} {
			if status, answer := fetch(t, c1, credentials, path, map[bool]string{true: "", false: id}[strings.Contains(path, "/stream/")]); status != http.StatusForbidden {
				t.Errorf("role %s asks for %s: %d %s", role, path, status, answer)
			}
		}
	}
	i := impersonate(t, c2.address, own) // which shows that the others could have been sent something
	fleettest.Await(t, "the controller of that name is sent something", func() bool { return i.bytes.Load() > 0 })
}

// Both sides leave a revoked controller, and it does not count: what is changed after the revocation it never learns.
func TestARevokedControllerLeavesTheStoreInTheSameAct(t *testing.T) {
	t.Run("by name", func(t *testing.T) {
		leavesTheStore(t, func(*x509.Certificate) *ballastv1.RevokeCertificateRequest {
			return &ballastv1.RevokeCertificateRequest{Name: "c2"}
		})
	})
	t.Run("by serial number", func(t *testing.T) {
		leavesTheStore(t, func(shown *x509.Certificate) *ballastv1.RevokeCertificateRequest {
			return &ballastv1.RevokeCertificateRequest{Serial: pki.SerialOf(shown)}
		})
	})
}

func leavesTheStore(t *testing.T, wishOf func(shown *x509.Certificate) *ballastv1.RevokeCertificateRequest) {
	t.Helper()
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	at := []string{freeAddress(t), freeAddress(t)}
	c1 := startKeeper(t, ca, "c1", t.TempDir(), at[0])
	c2 := startKeeper(t, ca, "c2", t.TempDir(), at[1], at[0])
	awaitControllers(t, controllersOf(operator, c1.address), "c1 voter alive", "c2 voter alive")
	stolen, err := pki.Load(ca.Dir, "c2", pki.Controller)
	fleettest.Require(t, err)
	fleet := api.NewFleetClient(at[:1], operator.Client())

	wish := wishOf(stolen.Own())
	wish.Reason = "stolen"
	if _, err := revoke(t, fleet, wish); err == nil || !strings.Contains(err.Error(), "controller c2 leaves the store, which 1 other controller keeps") {
		t.Errorf("unless it is meant: %v", err)
	}
	var answer *ballastv1.ChangeResponse
	wish.Force = true
	fleettest.Await(t, "etcd has been in touch for long enough", func() bool {
		answer, err = revoke(t, fleet, wish)
		return err == nil
	})
	if said := fmt.Sprint(answer.Changes); !strings.Contains(said, "revoked: ") || !strings.Contains(said, "controller c2: removed") {
		t.Errorf("%s", said)
	}
	awaitControllers(t, controllersOf(operator, c1.address), "c1 voter alive")
	if err := c2.ends(); !errors.Is(err, etcd.ErrRemoved) {
		t.Errorf("c2 ends with %v", err)
	}
	i := impersonate(t, c2.address, stolen)
	changes := startChanger(t, fleet)
	apply(t, fleet, fleettest.Service("web", 1000))
	changes.goesOn("without the revoked one")
	if n := i.bytes.Load(); n != 0 {
		t.Errorf("the thief was sent %d bytes", n)
	}
	if _, err := controllersOf(stolen, c1.address).AddController(t.Context(), &ballastv1.AddControllerRequest{Address: c2.address, Nonce: "x"}); err == nil {
		t.Error("the thief joins again")
	}
}
