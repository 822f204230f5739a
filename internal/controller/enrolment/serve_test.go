package enrolment

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Promise: Who asks to join and says nothing, too much, or nothing that makes sense is cut off within five seconds, counted, and changes nothing.
func TestWhoSaysNothingOfUseIsCutOff(t *testing.T) {
	credentials := fleettest.NewAuthority(t).Issue(pki.Controller, "c1")
	for what, said := range map[string]string{"nothing": "", "half a message": "\x20half", "a length without end": strings.Repeat("\xff", 20),
		"more than a message may have": "\xff\xff\x7f" + strings.Repeat("x", enrol.MessageBytes), "another protocol": "GET / HTTP/1.1\r\nHost: c1\r\nAccept: */*\r\nX-Filler: 0123456789012345678901234567890123456789\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			var refused []string
			e := New(Options{Name: "c1", Credentials: credentials, Refused: func(_ string, why error) { refused = append(refused, why.Error()) }})
			here, there := net.Pipe()
			ended := make(chan time.Duration, 1)
			go func() {
				began := time.Now()
				c := tls.Server(there, credentials.Joining(enrol.Protocol))
				e.Serve(c)
				c.Close()
				ended <- time.Since(began)
			}()
			machine := tls.Client(here, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{enrol.Protocol}})
			from, greeting, answer := bufio.NewReader(machine), &ballastv1.JoinGreeting{}, &ballastv1.JoinAnswer{}
			fleettest.Require(t, enrol.Receive(from, greeting))
			if greeting.Controller != "c1" || greeting.Time == nil {
				t.Errorf("%s: it is greeted by %v", what, greeting)
			}
			go io.WriteString(machine, said) // as far as it is read
			if err := enrol.Receive(from, answer); err == nil && (answer.Refused == "" || len(answer.Chain) > 0) {
				t.Errorf("%s is answered with %v", what, answer)
			}
			here.Close()
			if took := <-ended; took > enrol.AskTimeout+time.Second || len(refused) != 1 || !strings.Contains(refused[0], "it asks for nothing that makes sense") {
				t.Errorf("%s: after %v, refused for %q", what, took, refused)
			}
			if e.gate.total != 0 || len(e.gate.open) != 0 {
				t.Errorf("%s: %d are at it still, %v", what, e.gate.total, e.gate.open)
			}
		})
	}
}

// A list of controllers that is none is not taken: it becomes part of command lines of root.
func TestWhoJoinsTakesNoCommandsForControllers(t *testing.T) {
	c := delegated(t)
	e := c.all[0]
	e.o.Refused = func(_ string, why error) { t.Errorf("it is refused: %v", why) }
	e.o.Drained = func(context.Context, *pki.Identity) []string { return nil }
	listener, err := tls.Listen("tcp", "127.0.0.1:0", e.o.Credentials.Joining(enrol.Protocol))
	fleettest.Require(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			e.Serve(connection.(*tls.Conn))
			connection.Close()
		}
	})
	defer running.Wait()
	defer listener.Close()
	m, token := newMachine(t, "lb1", "127.0.0.1"), c.invite(&ballastv1.InviteRequest{Role: "lb"})
	e.o.Address = "$(reboot):6443"
	if _, err := enrol.Join(t.Context(), listener.Addr().String(), token, m.name, m.key, "1.2.3"); err == nil || !strings.Contains(err.Error(), "no host:port") {
		t.Errorf("it joins: %v", err)
	}
	e.o.Address = "10.0.0.21:6443"
	joined, err := enrol.Join(t.Context(), listener.Addr().String(), token, m.name, m.key, "1.2.3")
	fleettest.Require(t, err)
	if have := strings.Join(joined.Controllers, " "); have != "10.0.0.21:6443 10.0.0.22:6443" {
		t.Errorf("controllers are %s", have)
	}
}
