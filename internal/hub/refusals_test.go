package hub

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// lines is a log that several connections write.
type lines struct {
	mutex sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.Buffer.Write(p)
}

func (l *lines) count() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return strings.Count(l.String(), "\n")
}

// Promise: Controllers count the connections that they refuse, by reason, and a flood of them is no flood of log lines.
func TestRefusedConnectionsAreCountedByReason(t *testing.T) {
	ca, said := fleettest.NewAuthority(t), &lines{}
	own := ca.Issue(pki.Controller, "c1")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	refusals := NewRefusals(slog.New(slog.NewTextHandler(said, nil)))
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { NoteRefused(r, pki.WrongRole, errors.New("role lb")) })
	go Serve(t.Context(), listener, own, refusals, mux, nil)

	fleettest.Require(t, pki.Issue(ca.Dir, pki.Request{Role: pki.LB, Name: "late", Life: time.Nanosecond}))
	late, err := pki.Load(ca.Dir, "late", pki.LB)
	fleettest.Require(t, err)
	gone := ca.Issue(pki.LB, "gone")
	_, err = own.Revoke([]pki.Revocation{{Serial: pki.SerialOf(gone.Own()), At: time.Now(), Ends: time.Now().Add(time.Hour)}}, time.Now())
	fleettest.Require(t, err)
	foreign := fleettest.NewAuthority(t).Issue(pki.LB, "lb1").Client()
	foreign.VerifyConnection = nil // it is the other side that refuses
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}

	ask := func(config *tls.Config) {
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		if answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String()); err == nil {
			answer.Body.Close()
		}
	}
	for reason, config := range map[pki.Reason]*tls.Config{pki.NoCertificate: {InsecureSkipVerify: true}, pki.OtherAuthority: foreign, pki.Expired: late.Client(),
		pki.Revoked: gone.Client(), pki.WrongRole: ca.Issue(pki.LB, "lb1").Client(), pki.BadHandshake: old} {
		fleettest.Await(t, "a connection is refused: "+string(reason), func() bool { // it may be a second until a certificate has expired
			ask(config.Clone())
			return counted(refusals.count.WithLabelValues(string(reason))) > 0
		})
	}
	before := counted(refusals.count.WithLabelValues("no_certificate"))
	for range 100 {
		ask(&tls.Config{InsecureSkipVerify: true})
	}
	fleettest.Await(t, "all are counted", func() bool { return counted(refusals.count.WithLabelValues("no_certificate")) == before+100 })
	if n := said.count(); n < 6 || n > 6*(refusalsFirst+2) {
		t.Errorf("%d lines of log", n)
	}
	connection, err := net.Dial("tcp", listener.Addr().String()) // as a probe of the port does
	fleettest.Require(t, err)
	handshakes := counted(refusals.count.WithLabelValues("handshake"))
	connection.Close()
	ask(old)
	fleettest.Await(t, "the next one is counted", func() bool { return counted(refusals.count.WithLabelValues("handshake")) == handshakes+1 })
}
