package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

const serving = `title: serving
length: 20s
warm_up: 2s
servers: [{name: a, count: 8}, {name: b, count: 2, weight: 3, cores: 2, speed: 1.5}]
traffic: {load: 0.6, work: {shape: exponential, mean: 20ms}}
policies:
  - {dispatch: hash}
  - {dispatch: maglev}
  - {dispatch: wcmp}
  - {dispatch: rr}
  - {dispatch: wrr}
  - {dispatch: p2c}
  - {dispatch: least}
  - {dispatch: awrr, interval: 100ms}
  - {dispatch: awrr, interval: 100ms, load: cpu}
  - {dispatch: awfd, classes: 4}
  - {dispatch: lcf}
events:
  - {at: 5s, remove: 2, group: a}
  - {at: 6s, every: 2s, until: 10s, add: 1, remove: 1}
  - {at: 12s, rate: 200}
`

func TestRequestsTakeAsLongAsTheorySays(t *testing.T) {
	for servers, want := range map[string]struct{ mean, p50, busy float64 }{ // ms, ms, %
		"{count: 1}":            {50, 0, 80},              // M/M/1: 10 ms / (1 - 0.8)
		"{count: 5, speed: 2}":  {25, 0, 80},              // five of them, and of half the work
		"{count: 1, cores: 2}":  {10 / (1 - 0.64), 0, 80}, // M/M/2
		"{count: 1, cores: 40}": {10.1, 7, 80},            // hardly anybody waits
	} {
		s := parse(t, `length: 150s
warm_up: 10s
servers: [`+servers+`]
traffic: {load: 0.8, work: {shape: exponential, mean: 10ms}}
policies: [{dispatch: hash}]
table_slots: 65521
`)
		outcome := once(t, s, 3)
		near := func(measure string, want, part float64) {
			if have := outcome.Values["hash."+measure]; math.Abs(have-want) > part*want {
				t.Errorf("%s: %s is %g, want %g", servers, measure, have, want)
			}
		}
		near("mean", want.mean, 0.2)
		near("busy", want.busy, 0.05)
		if want.p50 != 0 {
			near("p50", want.p50, 0.1)
		}
	}
}

// The world of Cheetah's figure 8: what its experiment finds, a scenario finds.
func TestLongRequestsAreSpreadAsInTheExperiment(t *testing.T) {
	s := parse(t, `length: 40s
warm_up: 10s
servers: [{count: 64}]
traffic: {load: 0.6, work: {shape: bimodal, short: 300us, long: 500ms, part: 0.1}}
policies: [{dispatch: hash}, {dispatch: awrr, interval: 100ms, load: cpu}, {dispatch: p2c}, {dispatch: least}]
`)
	outcome := once(t, s, 1)
	for name, band := range map[string][2]float64{"awrr-cpu": {1.5, 2.4}, "p2c": {1.8, 3}, "least": {3, 7}} {
		if ratio := outcome.Values["hash.p99"] / outcome.Values[name+".p99"]; ratio < band[0] || ratio > band[1] {
			t.Errorf("%s: p99 of hash is %.2f times as long, want %v", name, ratio, band)
		}
	}
}

func TestPoliciesMeetTheSameRequests(t *testing.T) {
	outcome := once(t, parse(t, serving), 2)
	want := outcome.Shares["hash.broken"].Of
	for id, share := range outcome.Shares {
		if share.Of != want || share.Hits != 0 || want < 3000 {
			t.Errorf("%s: %d of %d requests, others %d: removed servers end what they have", id, share.Hits, share.Of, want)
		}
	}
}

func TestScenariosWithRequestsAreDeterministic(t *testing.T) {
	first, err := json.Marshal(once(t, parse(t, serving), 3))
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(once(t, parse(t, serving), 3))
	if err != nil || string(first) != string(second) {
		t.Errorf("they differ (%v)", err)
	}
}

// A failure breaks the requests that are there: of 10 servers as many as they have on average, 0.6/(1-0.6) at each.
func TestRequestsOfFailedServersAreBroken(t *testing.T) {
	text := `length: 100s
servers: [{name: rack, count: 10}, {count: 30}]
traffic: {load: 0.3, work: {shape: exponential, mean: 100ms}}
policies: [{dispatch: hash}]
events: [{at: 1s, every: 1s, WHAT: 10, group: rack}, {at: 1500ms, every: 1s, add: 10, group: rack}]
`
	for what, want := range map[string]float64{"fail": 99 * 10 * 0.3 / 0.7, "remove": 0} {
		share := once(t, parse(t, strings.Replace(text, "WHAT", what, 1)), 1).Shares["hash.broken"]
		if math.Abs(float64(share.Hits)-want) > 0.15*want {
			t.Errorf("%s: %d of %d broken, want about %g", what, share.Hits, share.Of, want)
		}
	}
}

func TestServersThatCannotKeepUpEndTheScenarioAllTheSame(t *testing.T) {
	s := parse(t, `length: 10s
servers: [{count: 3, speed: 0.01}]
traffic: {rate: 300, work: {shape: constant, mean: 1s}}
policies: [{dispatch: least}, {dispatch: lcf, load: cpu}]
`)
	outcome := once(t, s, 1)
	if p99 := outcome.Values["least.p99"]; p99 < 15_000 || p99 > 20_000 || outcome.Shares["least.broken"].Hits != 0 || outcome.Values["lcf-cpu.busy"] < 99 {
		t.Errorf("%v", outcome.Values)
	}
}

func TestCurvesShowWhatHappensWhen(t *testing.T) {
	s := parse(t, `length: 40s
warm_up: 5s
servers: [{name: a, count: 10}, {count: 10}]
traffic: {load: 0.4, work: {shape: exponential, mean: 50ms}}
policies: [{dispatch: rr}]
events: [{at: 20s, fail: 10, group: a}]
`)
	sums, counts := map[string]float64{}, map[string]float64{}
	for _, point := range once(t, s, 4).Points {
		when := fmt.Sprint(point.Series, " ", point.X >= 20)
		sums[when] += point.Y
		counts[when]++
	}
	mean := func(when string) float64 { return sums[when] / counts[when] }
	if counts["p99/rr false"] != samples/2-1 || counts["requests/rr true"] != samples/2+1 {
		t.Errorf("points: %v", counts)
	}
	if before, after := mean("p99/rr false"), mean("p99/rr true"); before < 150 || before > 450 || after < 1.5*before {
		t.Errorf("p99 is %g ms, and %g ms with half of the servers", before, after)
	}
	if before, after := mean("requests/rr false"), mean("requests/rr true"); before < 8 || before > 14 || after < 1.5*before {
		t.Errorf("%g requests are open, and %g at half of the servers", before, after)
	}
	if mean("broken/rr false") != 0 || mean("broken/rr true") < 2 || mean("broken/rr true") > 12 {
		t.Errorf("broken: %v", sums)
	}
}

// Servers are as busy as before whenever one more comes, at the end of a second or not.
func TestAServerThatComesDoesNotMakeOthersUneven(t *testing.T) {
	text := `length: 20s
servers: [{count: 20}]
traffic: {load: 0.6, work: {shape: constant, mean: 5ms}}
policies: [{dispatch: rr}]
events: [{at: AT, add: 1}]
`
	for _, at := range []string{"10s", "10001ms", "10999ms"} {
		if spread := once(t, parse(t, strings.Replace(text, "AT", at, 1)), 1).Values["rr.spread"]; spread > 1 {
			t.Errorf("a server that comes at %s: the spread is %g %%", at, spread)
		}
	}
}

func TestCurvesOfResponseTimeHaveNoPointWhereNothingEnded(t *testing.T) {
	s := parse(t, `length: 20s
servers: [{count: 3}]
traffic: {rate: 2, work: {shape: constant, mean: 1s}}
policies: [{dispatch: least}]
`)
	points := 0
	for _, point := range once(t, s, 1).Points {
		if point.Series != "p99/least" {
			continue
		}
		if points++; point.Y < 1000 {
			t.Errorf("p99 is %g ms at %g s, and no request takes less than 1000", point.Y, point.X)
		}
	}
	if points < 10 || points > 40 {
		t.Errorf("%d points, where some 35 requests end", points)
	}
}

func TestNobodyComesIsNoMistake(t *testing.T) {
	s := parse(t, "length: 10s\nservers: [{count: 3}]\ntraffic: {rate: 0, work: {shape: constant, mean: 1s}}\npolicies: [{dispatch: awrr}]\n")
	if outcome := once(t, s, 1); outcome.Values["awrr.p99"] != 0 || outcome.Values["awrr.busy"] != 0 {
		t.Errorf("%v", outcome.Values)
	}
}

func TestWorkComesFromFiles(t *testing.T) {
	text := strings.Replace(serving, "{shape: exponential, mean: 20ms}", "{file: cpu.csv, column: ms, mean: 30ms}", 1)
	s, err := Parse("test.yaml", []byte(text), files(map[string]string{"cpu.csv": "ms\n1\n3\n8\n"}))
	if err != nil {
		t.Fatal(err)
	}
	if mean, rate := s.Traffic.Work.Mean(), 0.6*(8+2*2*1.5)/0.03; math.Abs(mean-0.03) > 1e-9 || math.Abs(s.Traffic.Rate-rate) > 1e-6 {
		t.Errorf("mean %g s, %g requests/s, want %g", mean, s.Traffic.Rate, rate)
	}
}

// alike has policies only to which the number of load balancers makes no difference.
const alike = `length: 20s
servers: [{count: 4}]
traffic: {load: 0.6, work: {shape: constant, mean: 5ms}}
policies: [{dispatch: hash}, {dispatch: p2c}]

`

// Round robin is the less even the more counters take turns: load balancers times the counters of each.
func TestRoundRobinByManyCountersIsNearlyHash(t *testing.T) {
	p99 := func(loadBalancers, counters int) float64 {
		text := fmt.Sprintf("length: 10s\nwarm_up: 5s\nservers: [{count: 32}]\ntraffic: {load: 0.7, work: {shape: constant, mean: 5ms}}\n"+
			"load_balancers: %d\npolicies: [{dispatch: rr, counters: %d}]\n", loadBalancers, counters)
		outcome, err := sim.Once(context.Background(), parse(t, text).Experiment("test"), 1)
		if err != nil {
			t.Fatal(err)
		}
		return outcome.Values["rr.p99"]
	}
	one, eight, many := p99(1, 1), p99(1, 8), p99(16, 16)
	if eight < 2*one || many < 1.5*eight {
		t.Errorf("seed 1: p99 is %.3g ms by one counter, %.3g by 8, %.3g by 16 x 16", one, eight, many)
	}
	if other := p99(8, 1); other != eight {
		t.Errorf("seed 1: p99 is %g ms with 8 load balancers, %g with 8 counters", other, eight)
	}
}

func TestMoreLoadBalancersInTheMidstMakeRoundRobinLessEven(t *testing.T) {
	for name, text := range map[string]string{
		"requests": "length: 20s\nwarm_up: 2s\nservers: [{count: 16}]\ntraffic: {load: 0.7, work: {shape: constant, mean: 5ms}}\npolicies: [{dispatch: rr}]\n",
		"connections": "length: 20s\nservers: [{count: 16}]\ntraffic: {connections: 500, lifetimes: {shape: constant, mean: 1s}}\n" +
			"policies: [{dispatch: rr}]\n",
	} {
		measure := map[string]string{"requests": "rr.p99", "connections": "rr-cookie.imbalance"}[name]
		var values []float64
		for _, event := range []string{"", "events: [{at: 0s, load_balancers: 1000}]\n"} {
			outcome, err := sim.Once(context.Background(), parse(t, text+event).Experiment("test"), 1)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, outcome.Values[measure])
		}
		if values[1] < 1.5*values[0] {
			t.Errorf("seed 1: %s: %s is %g with one load balancer, %g with a thousand", name, measure, values[0], values[1])
		}
	}
}

func TestMistakesWithRequestsAreToldWithTheirLines(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(serving, old, new, 1) }
	without := func(old, new string) string { return strings.Replace(small, old, new, 1) }
	for want, text := range map[string]string{
		`test.yaml:5: traffic.lifetimes: requests have a connection each`:                          with("load: 0.6", "load: 0.6, lifetimes: {shape: web}"),
		`test.yaml:5: traffic: 2 of them: give one of rate and load`:                               with("load: 0.6", "load: 0.6, rate: 7"),
		`test.yaml:5: traffic: 0 of them: give one of rate and load`:                               with("load: 0.6", "connections: 4"),
		`test.yaml:5: traffic.connections: requests have a connection each`:                        with("load: 0.6", "load: 0.6, connections: 4"),
		`test.yaml:5: traffic.work.shape: unknown value "web": use one of exponential, pareto,`:    with("exponential", "web"),
		`test.yaml:5: traffic.work: constant without a mean: give mean`:                            with("exponential, mean: 20ms", "constant"),
		`test.yaml:5: traffic.work.mean: that of bimodal follows from short, long and part`:        with("exponential", "bimodal, short: 1ms, long: 2ms, part: 0.5"),
		`test.yaml:5: traffic.work.part: missing, or of no use: give short, long and part`:         with("exponential, mean: 20ms", "bimodal, short: 1ms, long: 2ms"),
		`test.yaml:5: traffic.work.short: missing, or of no use`:                                   with("exponential", "exponential, short: 1ms"),
		`test.yaml:5: traffic.work: a request may take 3.96e+03 s of a server's time`:              with("exponential, mean: 20ms", "constant, mean: 66m"),
		`test.yaml:5: traffic: about 2.2e+07 requests: have at most 10000000`:                      with("load: 0.6", "rate: 1000000"),
		`test.yaml:7: policies[0].affinity: each request finds its server once`:                    with("{dispatch: hash}", "{dispatch: hash, affinity: hash}"),
		`test.yaml:10: policies[3].load: rr follows no reports`:                                    with("{dispatch: rr}", "{dispatch: rr, load: cpu}"),
		`test.yaml:7: policies[0].counters: hash takes no turns`:                                   with("{dispatch: hash}", "{dispatch: hash, counters: 2}"),
		`test.yaml:6: load_balancers: all policies of this file know the same at every`:            alike + "load_balancers: 2\n",
		`test.yaml:6: events[0].load_balancers: all policies of this file know the same`:           alike + "events: [{at: 1s, load_balancers: 2}]\n",
		`test.yaml:22: expect[0].measure: peak is not known of requests: use one of broken, mean,`: serving + "expect: [{measure: peak, at_most: 2}]\n",
		`test.yaml:1: length: how busy servers are is measured by the second: use 2s or more`:      "length: 1s\n" + strings.Split(serving[strings.Index(serving, "warm_up"):], "events")[0],
		`test.yaml:22: events[3]: rates change 20000001 times: have at most 10000000`:              with("length: 20s", "length: 20000s") + "  - {at: 1ms, every: 1ms, rate: 1}\n",
		`test.yaml:2: length: 25h0m2s of requests, the warm-up included: use 24h0m0s at most`:      with("20s", "25h"),
		`test.yaml:3: servers[1].speed: it is for requests, and there is no traffic.work`:          without("weight: 3", "weight: 3, speed: 2"),
		`test.yaml:4: traffic.load: it is for requests`:                                            without("connections: 500", "connections: 500, load: 0.5"),
		`test.yaml:14: policies[8].load: it is for requests`:                                       without("interval: 100ms", "interval: 100ms, load: cpu"),
		`test.yaml:22: expect[0].measure: p99 is not known of connections`:                         small + "expect: [{measure: p99, at_most: 2}]\n",
	} {
		if _, err := Parse("test.yaml", []byte(text), files(nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want %s", err, want)
		}
	}
}

func TestAPolicyIsNamedForWhatItDoes(t *testing.T) {
	var names []string
	for _, policy := range parse(t, serving).Policies {
		names = append(names, policy.Name)
	}
	if have := strings.Join(names, " "); have != "hash maglev wcmp rr wrr p2c least awrr awrr-cpu awfd lcf" {
		t.Error(have)
	}
}

// drawnRequests is a random scenario of requests that is small enough to be run.
func drawnRequests(t *rapid.T) string {
	var text strings.Builder
	number := func(name string, least, most int) int { return rapid.IntRange(least, most).Draw(t, name) }
	fmt.Fprintf(&text, "length: %ds\nwarm_up: %ds\n", number("length", 2, 10), number("warm-up", 0, 5))
	fmt.Fprintf(&text, "servers: [{name: a, count: %d, cores: %d}, {count: %d, weight: %d, speed: %g}]\n", number("a", 1, 20), number("cores", 1, 4), number("b", 1, 9),
		number("weight", 1, 256), rapid.Float64Range(0.1, 100).Draw(t, "speed"))
	fmt.Fprintf(&text, "table_slots: 251\ntraffic: {%s: %d, work: ", rapid.SampledFrom([]string{"rate", "load"}).Draw(t, "by"), number("rate", 1, 3))
	if shape := rapid.SampledFrom(workShapes).Draw(t, "shape"); shape == "bimodal" {
		fmt.Fprintf(&text, "{shape: bimodal, short: %dms, long: %dms, part: %g}}\n", number("short", 50, 500), number("long", 1, 36_000), rapid.Float64Range(0, 1).Draw(t, "part"))
	} else {
		fmt.Fprintf(&text, "{shape: %s, mean: %dms}}\n", shape, number("mean", 50, 500))
	}
	text.WriteString("policies:\n")
	for i := range number("policies", 1, 3) {
		dispatch := rapid.SampledFrom(dispatches).Draw(t, "dispatch")
		fmt.Fprintf(&text, "  - {name: p%d, dispatch: %s", i, dispatch)
		if (Policy{Dispatch: dispatch}).follows() {
			fmt.Fprintf(&text, ", load: %s, interval: %dms", rapid.SampledFrom(sources).Draw(t, "load"), number("interval", 10, 3000))
		}
		text.WriteString("}\n")
	}
	text.WriteString("events:\n  - {at: 0s, rate: 50}\n")
	for range number("events", 0, 4) {
		fmt.Fprintf(&text, "  - {at: %dms, every: %ds, %s: %d}\n", number("at", 0, 2000), number("every", 1, 9),
			rapid.SampledFrom([]string{"add", "remove", "fail", "slow", "rate"}).Draw(t, "what"), number("how many", 1, 30))
	}
	return text.String()
}

func TestEveryScenarioOfRequestsEndsAndOnlyFailuresBreakThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawnRequests(t)
		s, outcome := playDrawn(t, text)
		for _, policy := range s.Policies {
			share, of := outcome.Shares[policy.Name+".broken"], func(measure string) float64 { return outcome.Values[policy.Name+"."+measure] }
			if share.Hits > 0 && !strings.Contains(text, "fail") || share.Hits > share.Of || of("p50") > of("p99") || of("busy") < 0 || of("busy") > 100+1e-6 {
				t.Errorf("%s: %d of %d broken, p50 %g, p99 %g, busy %g\n%s", policy.Name, share.Hits, share.Of, of("p50"), of("p99"), of("busy"), text)
			}
		}
	})
}
