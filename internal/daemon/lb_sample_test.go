package daemon_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// consoleSample is what a console says of a sample.
type consoleSample struct {
	At, Nodes, Packets, Sampled uint64
	Missing                     []struct{ Node, Why string }
	Clients, Servers            []struct {
		Name    string
		Packets uint64
		Share   float64
	}
}

// sample takes one by the console, while clients connect.
func (h *lbHost) sample() (found consoleSample) {
	h.t.Helper()
	var connection net.Conn
	require(h.t, h.space.Do(func() (err error) { connection, err = net.Dial("tcp", "127.0.0.1:9440"); return err }))
	defer connection.Close()
	require(h.t, connection.SetDeadline(time.Now().Add(hostDeadline)))
	fmt.Fprint(connection, "GET /sample HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answered := make(chan error, 1)
	go func() {
		answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err == nil {
			err = json.NewDecoder(answer.Body).Decode(&found)
		}
		answered <- err
	}()
	h.connect(func() bool {
		select {
		case err := <-answered:
			require(h.t, err)
			return true
		default:
			return false
		}
	})
	return found
}

// Promise: The console of a load balancer samples packets only when it is asked to, says whose they are by prefix and server, and tells the same again
// within ten seconds, with its age.
func TestTheConsoleOfALoadBalancerSamplesPacketsWhenAsked(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("a carrier", func(s api.LBStatus) bool { return s.Ready })
	events := h.events("service=web") // nobody has asked for a sample: a trace begins
	h.connectUntil(events)
	if found := h.sample(); found.Nodes != 0 || len(found.Missing) != 1 || !strings.Contains(found.Missing[0].Why, "a trace is running already") {
		t.Fatalf("beside a trace: %+v", found)
	}
}

func TestASampleSaysWhosePacketsAreMostAndIsKept(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("a carrier", func(s api.LBStatus) bool { return s.Ready })
	first := h.sample()
	if first.Nodes != 1 || len(first.Missing) > 0 || first.Sampled == 0 || len(first.Clients) == 0 || first.Clients[0].Name != "10.9.0.0/24" || first.Clients[0].Share <= 0 {
		t.Fatalf("%+v", first)
	}
	if len(first.Servers) == 0 || !strings.HasPrefix(first.Servers[0].Name, "web s") {
		t.Errorf("servers %+v", first.Servers)
	}
	second := h.sample()
	if second.Packets != first.Packets || second.At > first.At+1000 {
		t.Errorf("asked again at once it says %+v, after %+v", second, first)
	}
}

// Promise: A sample for a page gives way to `ballast ctl trace`, and says so.
func TestASampleGivesWayToATrace(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("a carrier", func(s api.LBStatus) bool { return s.Ready })
	var samples sync.WaitGroup
	var found consoleSample
	began := make(chan struct{})
	samples.Go(func() {
		var connection net.Conn
		if err := h.space.Do(func() (err error) { connection, err = net.Dial("tcp", "127.0.0.1:9440"); return err }); err != nil {
			close(began)
			return
		}
		defer connection.Close()
		_ = connection.SetDeadline(time.Now().Add(hostDeadline))
		fmt.Fprint(connection, "GET /sample HTTP/1.1\r\nHost: localhost\r\n\r\n")
		close(began)
		if answer, err := http.ReadResponse(bufio.NewReader(connection), nil); err == nil {
			_ = json.NewDecoder(answer.Body).Decode(&found)
		}
	})
	<-began
	h.awaitTrace()
	h.connectUntil(h.events("service=web"))
	samples.Wait()
	if len(found.Missing) != 1 || !strings.Contains(found.Missing[0].Why, "the sample ended early, for `ballast ctl trace`") {
		t.Errorf("%+v", found)
	}
}

// awaitTrace waits until the load balancer traces or samples packets for the first time: the filter of its program is empty before.
func (h *lbHost) awaitTrace() {
	h.t.Helper()
	id := h.program()
	fleettest.Await(h.t, "a trace", func() bool { return len(bytes.Trim(progtest.FirstOf(h.t, id, "trace_filters"), "\x00")) > 0 })
}

func TestAControllerAsksLoadBalancersForASample(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	controller, end := h.control(1)
	defer end()
	controller.Topics.SetState(viewOf(1, nil, 3, 4))
	h.start()
	h.await("the first state", func(s api.LBStatus) bool { return s.Revision == 1 })
	asked := make(chan error, 1)
	var packets uint64
	ask := func(of *hub.Hub) {
		answers, err := of.Nodes.Sample(t.Context())
		if err == nil && (len(answers) != 1 || answers[0].Explanation.Node != "lb1" || answers[0].Sample == nil) {
			err = fmt.Errorf("answers are %v", answers)
		}
		if err == nil {
			packets = answers[0].Sample.Packets
		}
		asked <- err
	}
	go ask(controller)
	h.connect(func() bool {
		select {
		case err := <-asked:
			require(t, err)
			return true
		default:
			return false
		}
	})
	if packets == 0 {
		t.Error("no packet was looked at")
	}
}
