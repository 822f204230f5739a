package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
)

// Promise: The page shows who changed the fleet, from where, why, and names the revision before it only where the fleet of that is kept.
func TestChangesNameTheWayBackWhereThereIsOne(t *testing.T) {
	v := small()
	for i, kept := range []bool{false, true, true} {
		v.Changes = append(v.Changes, &ballastv1.FleetChange{Time: timestamppb.New(time.Unix(int64(i), 0)), Name: "alice", Role: "ctl", Address: "192.0.2.7",
			Comment: "deploy 12", Revision: uint64(10 + i), Kept: kept})
	}
	rows := changeRows(&v)
	for i, back := range []uint64{11, 0, 0} {
		if r := rows[i]; r.Back != back || r.Revision != uint64(12-i) || r.From != "192.0.2.7" || r.Comment != "deploy 12" {
			t.Errorf("%+v, want the way back to %d", r, back)
		}
	}
}

func TestADifferenceIsAnsweredOrTheReasonToldWhyNot(t *testing.T) {
	long := make([]string, linesMost+7)
	for i := range long {
		long[i] = fmt.Sprintf("service default:web:tcp: <b>line %d</b>", i)
	}
	s := serveAll(t, Options{}, small, Source{Diff: func(_ context.Context, from, to uint64) ([]string, error) {
		switch from {
		case 1:
			return nil, nil
		case 2:
			return long, nil
		case 3:
			return nil, connect.NewError(connect.CodeNotFound, errors.New("the history has no revision 3"))
		}
		return nil, errors.New("the store cannot be reached")
	}})
	for query, want := range map[string]struct {
		status int
		text   string
	}{
		"from=1&to=0":                    {http.StatusOK, `{"changes":[]}`},
		"from=2&to=9":                    {http.StatusOK, `"more":7}`},
		"from=3&to=0":                    {http.StatusNotFound, "the history has no revision 3"},
		"from=4&to=0":                    {http.StatusServiceUnavailable, "the store cannot be reached"},
		"from=%3Cscript%3E&to=0":         {http.StatusBadRequest, "is no revision"},
		"from=-1&to=0":                   {http.StatusBadRequest, "is no revision"},
		"to=3":                           {http.StatusBadRequest, "is no revision"},
		"from=18446744073709551616&to=0": {http.StatusBadRequest, "is no revision"},
	} {
		answer, text := s.ask(noRedirect(), "GET", "/diff?"+query, nil)
		if answer.StatusCode != want.status || !strings.Contains(text, want.text) || strings.Contains(text, "<b>") {
			t.Errorf("%s: %s %s", query, answer.Status, text)
		}
		if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK && !strings.HasPrefix(kind, "text/plain") {
			t.Errorf("%s: an error is %s", query, kind)
		}
	}
	_, text := s.ask(noRedirect(), "GET", "/diff?from=2&to=9", nil)
	var found difference
	fleettest.Require(t, json.Unmarshal([]byte(text), &found))
	if len(found.Changes) != linesMost || found.Changes[0] != "service default/web/tcp: <b>line 0</b>" {
		t.Errorf("%d lines, first %q", len(found.Changes), found.Changes[0])
	}
	if answer, _ := s.ask(noRedirect(), "POST", "/diff?from=1&to=0", nil); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", answer.Status)
	}
}

func TestALoadBalancerSaysThatItKeepsNoHistory(t *testing.T) {
	s := serve(t, Options{}, small)
	if answer, text := s.ask(noRedirect(), "GET", "/diff?from=1&to=0", nil); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "controllers do") {
		t.Errorf("%s %s", answer.Status, text)
	}
}

func TestWhoIsNotLetInAsksNothing(t *testing.T) {
	var asked atomic.Int64
	s := serveAll(t, Options{TokenFile: tokenFile(t, goodToken, 0o600)}, small, Source{Diff: func(context.Context, uint64, uint64) ([]string, error) {
		asked.Add(1)
		return nil, nil
	}})
	if answer, _ := s.ask(noRedirect(), "GET", "/diff?from=1&to=0", nil); answer.StatusCode != http.StatusUnauthorized || asked.Load() != 0 {
		t.Errorf("%s, asked %d times", answer.Status, asked.Load())
	}
	with := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodToken) }
	if answer, _ := s.ask(noRedirect(), "GET", "/diff?from=1&to=0", with); answer.StatusCode != http.StatusOK {
		t.Errorf("with the token: %s", answer.Status)
	}
}

// However many pages ask at once, a daemon works on one of their questions.
func TestQuestionsOfPagesAreAnsweredOneAtATime(t *testing.T) {
	var running, most, count atomic.Int64
	s := serveAll(t, Options{}, small, Source{Diff: func(context.Context, uint64, uint64) ([]string, error) {
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer running.Add(-1)
		count.Add(1)
		for range 1000 {
			_ = marshal(small())
		}
		return nil, nil
	}})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if answer, err := http.Get("http://" + s.address + "/diff?from=1&to=0"); err == nil {
				answer.Body.Close()
			}
		})
	}
	all.Wait()
	if most.Load() != 1 || count.Load() != 8 {
		t.Errorf("%d at once, of %d", most.Load(), count.Load())
	}
}

// slow is a client that takes its answer only when it is told to.
type slow struct {
	*httptest.ResponseRecorder
	writing, read chan struct{}
}

func (s slow) Write(content []byte) (int, error) {
	close(s.writing)
	<-s.read
	return s.ResponseRecorder.Write(content)
}

func TestWhoDoesNotReadItsAnswerKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve := (&Console{}).once(make(chan struct{}, 1), func(context.Context, url.Values) (any, error) { return "an answer", nil })
		client := slow{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		var both sync.WaitGroup
		both.Go(func() { serve(client, httptest.NewRequest("GET", "/diff", nil)) })
		<-client.writing
		other := httptest.NewRecorder()
		if serve(other, httptest.NewRequest("GET", "/diff", nil)); other.Code != http.StatusOK {
			t.Errorf("%d %s", other.Code, other.Body)
		}
		close(client.read)
		both.Wait()
	})
}

// What takes long takes as long for the next one, too.
func TestWhoHasWaitedForItsTurnHasTheWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve := (&Console{}).once(make(chan struct{}, 1), func(ctx context.Context, _ url.Values) (any, error) {
			select {
			case <-time.After(onceWait * 3 / 4):
				return "an answer", nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				answer := httptest.NewRecorder()
				if serve(answer, httptest.NewRequest("GET", "/sample", nil)); answer.Code != http.StatusOK {
					t.Errorf("%d %s", answer.Code, answer.Body)
				}
			})
		}
		both.Wait()
	})
}

// Promise: A page is told why a server gets what it gets, as of the last look, and no more once the server is gone.
func TestAPageIsToldWhyAServerGetsWhatItGets(t *testing.T) {
	var gone atomic.Bool
	s := serve(t, Options{}, func() View {
		v := small()
		v.Services[0].Name = "default:web:tcp"
		for i := range v.Servers {
			v.Servers[i].Service = "default:web:tcp"
		}
		v.Nodes = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb2", Ready: "lost"}}
		if gone.Load() {
			v.Servers = v.Servers[:2]
		}
		return v
	})
	s.watch(nil).next() // it has looked
	const path = "/server?service=default%2Fweb%2Ftcp&id="
	answer, text := s.ask(noRedirect(), "GET", path+"3", nil)
	var found reasons
	fleettest.Require(t, json.Unmarshal([]byte(text), &found))
	if answer.StatusCode != http.StatusOK || len(found.Factors) < 6 || !strings.Contains(text, "1 of 3: 33.3 %") || !strings.Contains(text, "older figures: lb2") {
		t.Errorf("%s %s", answer.Status, text)
	}
	if age := time.Since(time.UnixMilli(found.At)); age < 0 || age > fleettest.Deadline {
		t.Errorf("as of %v ago", age)
	}
	for id, want := range map[string]int{"4": http.StatusNotFound, "65539": http.StatusBadRequest, "x": http.StatusBadRequest, "": http.StatusBadRequest} {
		if answer, text := s.ask(noRedirect(), "GET", path+id, nil); answer.StatusCode != want {
			t.Errorf("%s: %s %s", id, answer.Status, text)
		}
	}
	gone.Store(true)
	fleettest.Await(t, "the server is gone", func() bool {
		answer, _ := s.ask(noRedirect(), "GET", path+"3", nil)
		return answer.StatusCode == http.StatusNotFound
	})
}

// The stream of the largest fleets: what pages ask for once is no part of it.
func TestMessagesOfTheLargestFleetsAreBounded(t *testing.T) {
	e, at := newEncoder(), time.Unix(1e9, 0)
	const services, servers = 4096, 5000
	view := func(turn uint64, busy bool) View {
		v := viewOf(servers, 1000)
		web := v.Services[0]
		v.Services = nil
		for i := range services {
			one := web
			one.Name = fmt.Sprintf("default:service-%d:tcp", i)
			v.Services = append(v.Services, one)
		}
		for i := range v.Servers {
			s := &v.Servers[i]
			s.Service, s.LoadAge, s.HealthAge = v.Services[i%services].Name, durationpb.New(time.Duration(turn)), durationpb.New(time.Duration(turn))
			if s.Dispatched += turn; busy {
				s.Connections = new(1000 + turn)
			}
		}
		for i := range changesShown {
			v.Changes = append(v.Changes, &ballastv1.FleetChange{Time: timestamppb.New(at), Name: "alice", Comment: strings.Repeat("c", 200), Revision: uint64(i + 1), Kept: true,
				Changes: slices.Repeat([]string{strings.Repeat("x", 100)}, 20)})
		}
		return v
	}
	var sizes []string
	for i, c := range []struct {
		busy bool
		most int
	}{{false, 0}, {false, 30_000}, {true, 250_000}} { // bytes a second: only ages change, and all change
		v := view(uint64(i), c.busy)
		if !c.busy {
			for k := range v.Servers {
				v.Servers[k].Dispatched = 1000
			}
		}
		l := e.take(at.Add(time.Duration(i)*time.Second), &v)
		whole, delta := len(l.whole()), len(l.delta())
		sizes = append(sizes, fmt.Sprintf("%d", delta))
		if i > 0 && delta > c.most || whole > 4<<20 {
			t.Errorf("look %d: whole %d bytes, delta %d", i, whole, delta)
		}
	}
	t.Logf("%d services, %d servers: the first message, one where only ages change, one where all servers change: %s bytes", services, servers, strings.Join(sizes, ", "))
}
