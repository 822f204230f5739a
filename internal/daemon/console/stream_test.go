package console

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

func small() View { return viewOf(3, 10) }

// viewOf is of one service with n servers, each of which has got so many connections.
func viewOf(n int, dispatched uint64) View {
	s := model.NewService()
	s.Name, s.Ports = "web", []uint16{443}
	s.ApplyDefaults()
	v := View{Role: "lb", Name: "lb1", Services: []Service{{s, dispatched * uint64(n)}}, Verdicts: map[string]uint64{"forwarded_new": dispatched}}
	for id := range n {
		open := dispatched / 2
		v.Servers = append(v.Servers, Server{&ballastv1.ServerStatus{Service: "web", Health: "healthy", Weight: 1, Connections: &open,
			Server: &ballastv1.Server{Name: fmt.Sprintf("s%d", id+1), Address: fmt.Sprintf("10.0.%d.%d", (id+1)>>8, (id+1)&255), Id: uint32(id + 1)}}, dispatched})
	}
	return v
}

func TestAWatcherIsToldEverythingAndThenWhatChanges(t *testing.T) {
	t.Parallel()
	var mutex sync.Mutex
	now := small()
	s := serve(t, Options{}, func() View {
		mutex.Lock()
		defer mutex.Unlock()
		return now
	})
	watching := s.watch(nil)
	m, ok := watching.next()
	if !ok || !m.Whole || len(m.Servers) != 3 || len(m.Counts) != 12 || m.Services == nil || m.Head == nil {
		t.Fatalf("first: %v %+v", ok, m)
	}
	mutex.Lock()
	next := small()
	next.Servers[1].Server.State = "draining"
	next.Servers = next.Servers[:2]
	now = next
	mutex.Unlock()
	for len(m.Gone) == 0 {
		if m, ok = watching.next(); !ok || m.Whole {
			t.Fatalf("then: %v %+v", ok, m)
		}
	}
	if !slices.Equal(m.Gone, []int{2}) || len(m.Servers) != 1 || m.Servers[0].State != "draining" || m.Services != nil || m.Counts != nil {
		t.Errorf("what has changed: %+v", m)
	}
}

// Promise: People read names of services as Kubernetes has them, in all parts of the page.
func TestThePageHasNamesOfKubernetes(t *testing.T) {
	t.Parallel()
	v := viewOf(3, 10)
	const name = "default:web:tcp"
	v.Services[0].Name = name
	for i := range v.Servers {
		v.Servers[i].Service, v.Servers[i].Health = name, health.Unhealthy
	}
	v.Nodes = []*ballastv1.NodeStatus{{Role: "agent", Name: "n1", Ready: "no", Problems: []string{name + ": nothing listens"}}}
	v.Changes = []*ballastv1.FleetChange{{Name: "kube", Changes: []string{"service " + name + ": added"}}}
	look := newEncoder().take(time.Now(), &v)
	for _, text := range []string{string(look.whole()), string(look.delta())} {
		if strings.Contains(text, name) || strings.Count(text, "default/web/tcp") < 7 {
			t.Error(text)
		}
	}
}

// One look a second serves all, and one that reads nothing holds up nobody.
func TestManyAndSlowWatchersCostNoMoreLooks(t *testing.T) {
	t.Parallel()
	s := serve(t, Options{}, func() View { return viewOf(2000, uint64(time.Now().UnixNano())) })
	for range 8 { // they ask, and read nothing
		connection, err := net.Dial("tcp", s.address)
		fleettest.Require(t, err)
		t.Cleanup(func() { connection.Close() })
		fmt.Fprint(connection, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	quick := s.watch(nil)
	first, _ := quick.next()
	began, looks := time.Now(), s.looks.Load()
	for range 2 {
		if _, ok := quick.next(); !ok {
			t.Fatal("the stream has ended")
		}
	}
	if asked, most := s.looks.Load()-looks, int64(time.Since(began)/lookPeriod)+2; asked > most {
		t.Errorf("%d looks in %v", asked, time.Since(began))
	}
	if !first.Whole {
		t.Error("the first message is not whole")
	}
}

func TestTooManyWatchersAreRefusedAndTheOthersStay(t *testing.T) {
	s := serve(t, Options{}, small)
	open := func(from byte) *http.Response {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, from)}}
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		answer, err := client.Get("http://" + s.address + "/events")
		fleettest.Require(t, err)
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	for i := range streamsTotal {
		if answer := open(byte(1 + i%2)); answer.StatusCode != http.StatusOK {
			t.Fatalf("watcher %d: %s", i, answer.Status)
		}
	}
	refused := open(3)
	body, _ := io.ReadAll(refused.Body)
	if refused.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "close some") {
		t.Errorf("one more: %s %s", refused.Status, body)
	}
	if answer, _ := s.ask(noRedirect(), "GET", "/", nil); answer.StatusCode != http.StatusOK {
		t.Errorf("the page meanwhile: %s", answer.Status)
	}
}

func TestRatesAreOfTheLastSeconds(t *testing.T) {
	var r rates[string]
	at := time.Unix(0, 0)
	for i, step := range []struct {
		count uint64
		rate  float64
	}{{1000, 0}, {1010, 10}, {1030, 15}, {1030, 10}, {1030, 7.5}, {5, 0}, {9, 0}} {
		if have := r.add(at.Add(time.Duration(i)*time.Second), map[string]uint64{"x": step.count})["x"]; have != step.rate {
			t.Errorf("look %d: %v, want %v", i, have, step.rate)
		}
	}
}

func TestTheFirstLineSaysWhatIsWrong(t *testing.T) {
	for want, spoil := range map[string]func(*View){
		"Nothing is wrong: 3 servers of 1 service take new connections.":      func(*View) {},
		"Nothing is wrong: 2 of 3 servers of 1 service take new connections.": func(v *View) { v.Servers[0].Server.State = "draining" },
		"No service is configured yet.":                                       func(v *View) { *v = View{} },
		"web: server s2 is unhealthy: connect: refused":                       func(v *View) { v.Servers[1].Health, v.Servers[1].HealthDetail = "unhealthy", "connect: refused" },
		"web: no server takes new connections":                                func(v *View) { v.Servers = nil },
		"load balancer lb2: lost, was connected and is not any more":          func(v *View) { v.Nodes = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb2", Ready: "lost"}} },
		"web: 1 server is without a connected agent: s3":                      func(v *View) { v.Servers[2].Agent = "none" },
		"controller c1: the store cannot be reached": func(v *View) {
			v.Nodes = []*ballastv1.NodeStatus{{Role: "controller", Name: "c1", Ready: "no", Problems: []string{"the store cannot be reached"}}}
		},
		"web: 5 servers are unhealthy: s1, s2, s3 and 2 more": func(v *View) {
			*v = viewOf(9, 1)
			for i := range 5 {
				v.Servers[i].Health = "unhealthy"
			}
		},
		"web: no server is healthy, new connections go to them all the same (all_down: keep): 3 servers are unhealthy: s1, s2, s3": func(v *View) {
			for i := range v.Servers {
				v.Servers[i].Health = "unhealthy"
			}
		},
		"web: agent s2: gets no tunnels; server s2 is unhealthy: timeout": func(v *View) {
			v.Servers[1].Health, v.Servers[1].HealthDetail = "unhealthy", "timeout"
			v.Nodes = []*ballastv1.NodeStatus{{Role: "agent", Name: "s2", Ready: "yes", Problems: []string{"gets no tunnels"}}}
		},
		"load balancer lb2: lost: its certificate is revoked": func(v *View) { // the cause, and once
			v.Servers[1].Health = "unhealthy"
			v.Nodes = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb2", Ready: "lost", Problems: []string{"its certificate is revoked"}}}
		},
		"5 agents (s1, s2, s3 and 2 more): port 80 is closed": func(v *View) {
			for _, name := range []string{"s1", "s2", "s3", "s4", "s5"} {
				v.Nodes = append(v.Nodes, &ballastv1.NodeStatus{Role: "agent", Name: name, Ready: "yes", Problems: []string{"port 80 is closed"}})
			}
		},
		"no load balancer is connected": func(v *View) { v.Problems = []string{"no load balancer is connected"} },
	} {
		v := small()
		spoil(&v)
		if list := problemsOf(&v); len(v.Nodes) > 0 && v.Nodes[0].Role == "agent" && len(list) != 1 {
			t.Errorf("facts about one node are told apart: %v", list)
		}
		if _, have := headline(&v, problemsOf(&v)); have != want {
			t.Errorf("%q, want %q", have, want)
		}
	}
}

func TestAProblemKeepsTheTimeItWasSeenFirst(t *testing.T) {
	e, v := newEncoder(), small()
	v.Servers[0].Health = "unhealthy"
	at := time.Unix(1000, 0)
	first := string(e.take(at, &v).whole())
	if later := string(e.take(at.Add(time.Hour), &v).whole()); !strings.Contains(first, `"since":1000000`) || !strings.Contains(later, `"since":1000000`) {
		t.Errorf("%s\n%s", first, later)
	}
}

func TestChangesAreListedNewestFirst(t *testing.T) {
	v := small()
	for i := range 2 * changesShown {
		v.Changes = append(v.Changes, &ballastv1.FleetChange{Time: timestamppb.New(time.Unix(int64(i), 0)), Name: "alice", Role: "ctl"})
	}
	if rows := changeRows(&v); len(rows) != changesShown || rows[0].Time != (2*changesShown-1)*1000 || rows[0].By != "alice (ctl)" {
		t.Errorf("%d rows, first %+v", len(rows), rows[0])
	}
}

// What is checked in is what npm makes of it; that it makes the same again is for make test-long.
func TestThePageIsBuiltOfItsSources(t *testing.T) {
	check := exec.Command("sha256sum", "--check", "--strict", "--quiet", "sums.sha256")
	check.Dir = "page"
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s: build it again: cd internal/daemon/console/page && npm ci && npm run build", err, out)
	}
}

func TestMessagesOfThousandServersStaySmall(t *testing.T) {
	e, at := newEncoder(), time.Unix(1e9, 0)
	var last *look
	for i := range 5 {
		v := viewOf(1000, uint64(1e6+137*i*i))
		last = e.take(at.Add(time.Duration(i)*time.Second), &v)
	}
	whole, delta := len(last.whole()), len(last.delta())
	t.Logf("1,000 servers: whole %d bytes, and %d a second if all of them change", whole, delta)
	if whole > 300_000 || delta > 40_000 {
		t.Errorf("whole %d bytes, delta %d", whole, delta)
	}
}
