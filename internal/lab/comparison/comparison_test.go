package comparison

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestTheScheduleIsTheSameForAllContenders(t *testing.T) {
	all := Schedule(7, Events())
	if !reflect.DeepEqual(all, Schedule(7, Events())) {
		t.Error("the same seed gives two schedules")
	}
	if reflect.DeepEqual(all, Schedule(8, Events())) {
		t.Error("two seeds give one schedule")
	}
	for _, step := range all {
		if step.Server < 1 || step.Server > first || step.Balancer < 1 || step.Balancer > 2 {
			t.Errorf("%+v", step)
		}
		only, err := choose(Events(), func(e Event) string { return e.Name }, []string{step.Event})
		if err != nil || !reflect.DeepEqual(Schedule(7, only), []Step{step}) {
			t.Errorf("%s alone is another step: %v", step.Event, err)
		}
	}
}

func TestConnectionsAreCountedByWhatEndedThem(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }
	ended := func(flow, server string, class traffic.Class, from, to float64) traffic.Connection {
		return traffic.Connection{Flow: flow, Server: server, Class: class, Started: at(from), Ended: at(to)}
	}
	answer := func(when, took float64) traffic.Answer {
		return traffic.Answer{At: at(when), Took: time.Duration(took * float64(time.Second))}
	}
	m := count(window{at(10), at(11), at(12), at(15)}, []traffic.Connection{
		ended(flowOpen, "s1", traffic.Completed, 0, 16),
		ended(flowOpen, "s1", traffic.Reset, 0, 11),            // broken
		ended(flowOpen, "s1", traffic.Stalled, 0, 17),          // broken, later than clients were asked to end
		ended(flowOpen, "s2", traffic.Stalled, 0, 13),          // with its server
		ended(flowOpen, "s2", traffic.Reset, 0, 10.2),          // broken before its server lost its power
		ended(flowOpen, "s2", traffic.Reset, 11, 14),           // broken: its server was back
		ended(flowOpen, "s2", traffic.Moved, 0, 13),            // broken: another server answered
		ended(flowShort, "", traffic.ConnectTimeout, 11, 14),   // a request lost
		ended(flowShort, "s3", traffic.Completed, 9.999, 10.1), // no connection that stays
	}, []traffic.Answer{answer(5, 0.001), answer(10.5, 0.5), answer(11.5, 2), answer(13, 0.003), answer(9, 1.5)}, map[string]time.Time{"s2": at(10.5)})
	want := Measured{Alive: 6, Broken: 5, BrokenBy: map[traffic.Class]int{traffic.Reset: 3, traffic.Stalled: 1, traffic.Moved: 1}, Ended: 1, Stalled: 1, Lost: 6, Answered: 5, Seconds: 1,
		Before: Latency{2, 1, 1500, 1500}, During: Latency{2, 500, 2000, 2000}, After: Latency{1, 3, 3, 3}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
}

func TestWhatIsMissingIsNamedWithItsPackage(t *testing.T) {
	one := Contender{Programs: map[string]string{"no-such-program": "its-package", "/no/such/module.so": "another"}, Possible: func() error { return errors.New("not asked") }}
	err := one.missing()
	if err == nil || !strings.Contains(err.Error(), "apt install its-package") || !strings.Contains(err.Error(), "module.so is not installed: apt install another") || strings.Contains(err.Error(), "asked") {
		t.Error(err)
	}
	one.Programs = map[string]string{"ls": "coreutils", "/proc/self/status": "linux"}
	if err := one.missing(); err == nil || err.Error() != "not asked" {
		t.Error(err)
	}
	one.Possible = nil
	if err := one.missing(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNotThereIsRefusedWithWhatIs(t *testing.T) {
	name := func(c Contender) string { return c.Name }
	if _, err := choose(Contenders(), name, []string{"cookie", "f5"}); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), `"f5"`) || !strings.Contains(err.Error(), "maglev-local") {
		t.Error(err)
	}
	if all, err := choose(Contenders(), name, []string{every}); err != nil || len(all) != len(Contenders()) {
		t.Errorf("%d of %d contenders: %v", len(all), len(Contenders()), err)
	}
	chosen, err := choose(Contenders(), name, []string{"cookie", "haproxy"})
	if err != nil || len(chosen) != 2 || chosen[0].Name != "haproxy" {
		t.Errorf("%v: %v", chosen, err)
	}
	for _, event := range shortEvents {
		if !slices.ContainsFunc(Events(), func(e Event) bool { return e.Name == event }) {
			t.Errorf("a short run has no event %s", event)
		}
	}
}

func TestTheTableHasADashWhereAContenderHasNothingToLose(t *testing.T) {
	result := Result{Schedule: []Step{{Event: "server-killed"}, {Event: "both"}}, Contenders: []Row{
		{Name: "direct", Cost: &Cost{Total: 20}, Capacity: &Capacity{Idle: 1000, Total: 8, New: 9000}, Steps: []Measured{{Step: Step{Event: "server-killed"}, Broken: 3, Alive: 120, Ended: 24}}},
		{Name: "cookie", Cost: &Cost{Total: 26}, Capacity: &Capacity{Idle: 1000, Total: 8.5, New: 7000, Errors: "Socket errors: connect 1"}, Steps: []Measured{{Step: Step{Event: "server-killed"}, Alive: 120}, {Step: Step{Event: "both"}, Alive: 120}}},
		{Name: "ipvs-mh", NotRun: "ipvsadm is not installed: apt install ipvsadm"},
	}}
	result.compare()
	if got := result.Contenders[1].Cost.Balancers; got != 6 {
		t.Errorf("the balancers cost %v beside direct", got)
	}
	var out bytes.Buffer
	result.Print(&out)
	for _, want := range []string{"direct     3/120 (24)     -\n", "cookie     0/120          0/120\n", "not run: ipvs-mh: ipvsadm is not installed",
		"cookie     8.5          0.5        0.0              1000  7000\n", "cookie: of new connections wrk reports Socket errors: connect 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestMemoryOfConnectionsIsThatOfTheirObjectsInUse(t *testing.T) {
	got, err := parseSlabs([]byte("slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize>\nTCPv6  10 99 2000 13 4 : tunables 0 0 0\nTCP 20 99 1000 1\n" +
		"nf_conntrack 5 99 256 1\nsock_inode_cache 30 99 100 1\ndentry 77777 99999 192 21 1\ntw_sock_TCP 9 9 9 9\n"))
	if want := 10*2000 + 20*1000 + 5*256 + 30*100.0; err != nil || got != want {
		t.Errorf("%v, want %v: %v", got, want, err)
	}
	for _, text := range []string{"", "dentry 1 2 3 4\n", "TCP x 2 3 4\n"} {
		if _, err := parseSlabs([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestBusyTimeLeavesOutWaiting(t *testing.T) {
	got, err := parseBusy([]byte("cpu  100 200 300 99999 88888 400 500 600 700 0\ncpu0 1 2 3 4\n"))
	if err != nil || got != 15 {
		t.Errorf("%v: %v", got, err)
	}
	for _, text := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 x 8\n"} {
		if _, err := parseBusy([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestTheCostOfOthersIsLeftOut(t *testing.T) {
	p, err := parseProcess("42 (a (b) c) S 7 41 1 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 1\n")
	if want := (accounted{42, 7, 41, 2, 0.5}); err != nil || p != want {
		t.Errorf("%+v: %v", p, err)
	}
	for _, text := range []string{"", "42 (a", "42 (a) S 7 41", "x (a) S 7 41 1 0 -1 4194560 1 2 3 4 150 50 30 20 20"} {
		if _, err := parseProcess(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	parent := map[int]int{42: 41, 41: 7, 7: 1, 9: 1}
	if !descends(42, 7, parent) || !descends(7, 7, parent) || descends(9, 7, parent) || descends(1, 7, parent) || descends(100, 7, parent) {
		t.Error("children are not found")
	}
}

func TestWhatWrkPrintsIsRead(t *testing.T) {
	const text = `Running 2s test @ http://198.51.100.10/name
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   612.95us  702.02us  14.84ms   94.98%
  Latency Distribution
     50%  468.00us
     75%  612.00us
     90%    1.00ms
     99%    2.24ms
  131662 requests in 2.00s, 22.60MB read
Requests/sec:  65831.00
`
	requests, cost, err := parseWrk(text)
	if want := (Cost{PerSecond: 65831, P50: 0.468, P99: 2.24}); err != nil || requests != 131662 || cost != want {
		t.Errorf("%v %+v: %v", requests, cost, err)
	}
	if _, cost, err := parseWrk(strings.Replace(text, "2.24ms", "1.32s ", 1)); err != nil || cost.P99 != 1320 { // it pads seconds
		t.Errorf("%+v: %v", cost, err)
	}
	if _, cost, err := parseWrk(text + "  Socket errors: connect 0, read 1, write 0, timeout 0\n"); err != nil || cost.Errors != "Socket errors: connect 0, read 1, write 0, timeout 0" {
		t.Errorf("%+v: %v", cost, err)
	}
	for _, text := range []string{"", strings.Replace(text, "131662", "0", 1), strings.Replace(text, "99%", "x", 1)} {
		if _, _, err := parseWrk(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestKubernetesHearsWhichServersDrain(t *testing.T) {
	nodes := kubernetesNodes{t: &world.Trial{Network: &world.Network{Topology: world.Topology{Servers: make([]world.ServerNode, 3)}}}}
	text, err := json.Marshal(nodes.endpoints([]State{Active, Absent, Draining})["endpoints"])
	const want = `[{"addresses":["10.30.1.1"],"conditions":{"ready":true,"serving":true,"terminating":false}},` +
		`{"addresses":["10.30.1.3"],"conditions":{"ready":false,"serving":true,"terminating":true}}]`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}

func TestFleetsOfOursAreValid(t *testing.T) {
	for _, c := range ours() {
		for _, one := range c.setup().Services {
			one.Add("s1", 1, netip.MustParseAddr("10.30.1.1"), 0)
			fleet := model.Fleet{Services: []model.Service{one.Clone()}, Keys: model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {1}}}}
			fleet.ApplyDefaults()
			if err := fleet.Validate(); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}
