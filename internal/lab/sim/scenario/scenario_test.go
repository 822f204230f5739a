package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

const small = `title: small
length: 20s
servers: [{name: a, count: 8}, {name: b, count: 2, weight: 3}]
traffic: {connections: 500, lifetimes: {shape: exponential, mean: 5s}}
policies:
  - {dispatch: hash, affinity: hash}
  - {dispatch: maglev, affinity: history, depth: 3}
  - {dispatch: maglev, affinity: local-table}
  - {dispatch: wcmp}
  - {dispatch: rr}
  - {dispatch: wrr}
  - {dispatch: p2c}
  - {dispatch: least}
  - {dispatch: awrr, interval: 100ms}
  - {dispatch: awfd, classes: 4}
  - {dispatch: lcf}
events:
  - {at: 5s, remove: 2}
  - {at: 6s, every: 2s, until: 10s, add: 1, remove: 1}
  - {at: 12s, rate: 200}
  - {at: 15s, load_balancers: 3}
`

// files opens those of a map.
func files(all map[string]string) Opener {
	return func(name string) ([]byte, error) {
		text, ok := all[name]
		if !ok {
			return nil, errors.New("no such file")
		}
		return []byte(text), nil
	}
}

func parse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text), files(nil))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func once(t *testing.T, s *Scenario, seed uint64) *sim.Outcome {
	t.Helper()
	outcome, err := sim.Once(context.Background(), s.Experiment("test"), seed)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

func TestCookiesSurviveRemovalsAndHashesDoNot(t *testing.T) {
	outcome := once(t, parse(t, small), 1)
	for _, name := range []string{"wcmp-cookie", "rr-cookie", "wrr-cookie", "p2c-cookie", "least-cookie", "awrr-cookie", "awfd-cookie", "lcf-cookie"} {
		if share := outcome.Shares[name+".broken"]; share.Hits != 0 || share.Of < 1000 {
			t.Errorf("%s: %+v", name, share)
		}
	}
	hash, history := outcome.Values["hash-hash.broken"], outcome.Values["maglev-history3.broken"]
	if hash < 10 || history > hash/4 {
		t.Errorf("hash breaks %g %%, with a history of three owners %g %%", hash, history)
	}
}

func TestPoliciesMeetTheSameConnections(t *testing.T) {
	outcome := once(t, parse(t, small), 2)
	want := outcome.Shares["hash-hash.broken"].Of
	for id, share := range outcome.Shares {
		if share.Of != want {
			t.Errorf("%s: %d connections, others %d", id, share.Of, want)
		}
	}
}

func TestScenariosAreDeterministic(t *testing.T) {
	first, err := json.Marshal(once(t, parse(t, small), 3))
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(once(t, parse(t, small), 3))
	if err != nil || string(first) != string(second) {
		t.Errorf("they differ (%v)", err)
	}
}

func TestWeightsAreFollowed(t *testing.T) {
	s := parse(t, `length: 10s
servers: [{count: 5}, {count: 5, weight: 4}]
traffic: {connections: 20000, lifetimes: {shape: constant, mean: 2s}}
policies: [{dispatch: wrr}, {dispatch: rr}, {dispatch: least}]
`)
	outcome := once(t, s, 1)
	if least := outcome.Values["least-cookie.imbalance"]; least > 5 {
		t.Errorf("least leaves an imbalance of %g %%", least)
	}
	if weighted, plain := outcome.Values["wrr-cookie.imbalance"], outcome.Values["rr-cookie.imbalance"]; weighted > 5 || math.Abs(plain-150) > 10 {
		t.Errorf("the most loaded server has %g %% too much with weights, %g %% without; want about 0 and 150", weighted, plain)
	}
}

func TestFailuresBreakWhatTheServersHad(t *testing.T) {
	s := parse(t, `length: 10s
servers: [{name: rack, count: 10}, {count: 30}]
traffic: {connections: 4000, lifetimes: {shape: constant, mean: 1000s}}
policies: [{dispatch: rr}]
events: [{at: 5s, fail: 10, group: rack}]
`)
	if share := once(t, s, 1).Shares["rr-cookie.broken"]; share.Hits < 900 || share.Hits > 1100 {
		t.Errorf("%d of %d broken, a quarter of 4000 had been there", share.Hits, share.Of)
	}
}

func TestTheLastServerStays(t *testing.T) {
	s := parse(t, `length: 5s
servers: [{count: 3}]
traffic: {connections: 100}
policies: [{dispatch: rr}, {dispatch: maglev, affinity: hash}]
events: [{at: 1s, remove: 3}, {at: 2s, fail: 3}, {at: 3s, add: 5}]
`)
	once(t, s, 1)
}

func TestExpectationsBecomeBands(t *testing.T) {
	s := parse(t, small+"expect: [{measure: broken, at_most: 3}, {policy: rr-cookie, measure: peak, at_least: 1}]\n")
	for _, claim := range s.Experiment("x").Claims {
		low, high := math.Inf(-1), math.Inf(1)
		if strings.HasSuffix(claim.ID, ".broken") {
			high = 3
		} else if claim.ID == "rr-cookie.peak" {
			low = 1
		}
		if claim.Low != low || claim.High != high {
			t.Errorf("%s: %g to %g", claim.ID, claim.Low, claim.High)
		}
	}
}

func TestMistakesAreToldWithTheirLines(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(small, old, new, 1) }
	for want, text := range map[string]string{
		`test.yaml:1: the file is empty: see ballast-lab sim scenario --help`:          "\n",
		`test.yaml:2: length: "5 parsecs" is not such a duration`:                      with("length: 20s", "length: 5 parsecs"),
		`test.yaml:3: server: unknown key: did you mean servers?`:                      with("servers:", "server:"),
		`test.yaml:3: servers[1].weight: "-3" is not such a number`:                    with("weight: 3", "weight: -3"),
		`test.yaml:3: servers[1]: a second group "a"`:                                  with("name: b", "name: a"),
		`test.yaml:4: traffic: 2 of them: give one of`:                                 with("traffic: {", "traffic: {rate: 3, "),
		`test.yaml:4: traffic.lifetimes: pareto without a mean: give mean`:             with("shape: exponential, mean: 5s", "shape: pareto"),
		`test.yaml:6: policies[0].dispatch: unknown value "hush": use one of rr, wrr,`: with("dispatch: hash", "dispatch: hush"),
		`test.yaml:6: policies[0].affinity: rr finds no server again`:                  with("dispatch: hash, affinity: hash", "dispatch: rr, affinity: hash"),
		`test.yaml:6: policies[0].depth: only affinity history has one`:                with("affinity: hash}", "affinity: hash, depth: 4}"),
		`test.yaml:6: policies[0].affinity: with hash no packet tells which candidate`: with("dispatch: hash, affinity: hash", "dispatch: choices, affinity: hash"),
		`test.yaml:6: policies[0].threshold: only choices has it`:                      with("affinity: hash}", "affinity: hash, threshold: 4}"),
		`test.yaml:6: policies[0].depth: a history of one owner is none`:               with("affinity: hash}", "affinity: history, depth: 1}"),
		`test.yaml:18: events[0].slow: servers that only have connections do no work`:  with("remove: 2", "slow: 2"),
		`test.yaml:18: events[0].speed: nobody is slowed down`:                         with("remove: 2", "remove: 2, speed: 0.5"),
		`test.yaml:10: policies[4]: a second policy "wcmp-cookie"`:                     with("{dispatch: rr}", "{dispatch: wcmp}"),
		`test.yaml:18: events[0]: it would happen after the end`:                       with("at: 5s", "at: 5m"),
		`test.yaml:18: events[0].remove: "x" is not such a number`:                     with("remove: 2", "remove: x"),
		`test.yaml:18: events[0].group: there is none called "c"`:                      with("remove: 2", "remove: 2, group: c"),
		`test.yaml:18: events[0]: nothing happens`:                                     with(", remove: 2", ""),
		`test.yaml:2: length: repeated, first on line 1`:                               "length: 1s\nlength: 2s\n",
		`test.yaml:3: not YAML`:                                                          "a: 1\nb: 2\n  c: [\n",
		`test.yaml:2: title: a list instead of a value`:                                  "length: 1s\ntitle: [a]\n",
		`test.yaml:3: policies: a mapping instead of a list`:                             "length: 1s\nservers: []\npolicies: {a: 1}\n",
		`test.yaml:3: the file has several documents`:                                    "length: 1s\n---\nlength: 2s\n",
		`test.yaml:1: "*b" is not supported here`:                                        "a: *b\n",
		`test.yaml:1: nested too deeply`:                                                 "a: " + strings.Repeat("[", 99) + strings.Repeat("]", 99),
		`test.yaml:4: traffic: 4e+08 connections at the same time`:                       with("connections: 500", "rate: 80000000"),
		`test.yaml:1: too much to simulate`:                                              with("length: 20s", "length: 300h\nwarm_up: 700h"),
		`test.yaml:4: traffic.trace: no such file`:                                       with("connections: 500, lifetimes: {shape: exponential, mean: 5s}", "trace: none.csv"),
		`test.yaml:22: expect[0].policy: there is none called "nobody"`:                  small + "expect: [{policy: nobody, measure: peak, at_most: 2}]\n",
		`test.yaml:22: expect[0]: nothing can be judged by this`:                         small + "expect: [{measure: peak, at_most: 2, at_least: 4}]\n",
		`test.yaml:17: events: up to 80010 servers: add fewer: at most 60000 altogether`: with("until: 10s, add: 1", "until: 15s, add: 16000"),
	} {
		if _, err := Parse("test.yaml", []byte(text), files(nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want %s", err, want)
		}
	}
}

func TestLifetimesComeFromFiles(t *testing.T) {
	text := strings.Replace(small, "{shape: exponential, mean: 5s}", "{file: lives.csv, column: s}", 1)
	s, err := Parse("test.yaml", []byte(text), files(map[string]string{"lives.csv": "# measured\nclient,s\na,1\nb,3\nc,8\n"}))
	if err != nil {
		t.Fatal(err)
	}
	if mean := s.Traffic.Lifetimes.Mean(); math.Abs(mean-4) > 1e-9 || math.Abs(s.Traffic.Rate-125) > 1e-6 {
		t.Errorf("mean %g s, %g connections/s", mean, s.Traffic.Rate)
	}
	for content, want := range map[string]string{
		"client,s\na,1\nb,x\n": `test.yaml:4: traffic.lifetimes.file: lives.csv:3: s "x" is not such a number`,
		"client,t\n":           `lives.csv: there is no column "s"`,
		"client,s\n":           "lives.csv has no lines",
		"client,s\na\n":        "lives.csv: record on line 2: wrong number of fields",
		"client,s\na,-1\n":     `s "-1" is not such a number`,
	} {
		if _, err := Parse("test.yaml", []byte(text), files(map[string]string{"lives.csv": content})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want %s", err, want)
		}
	}
}

func TestTracesAreReplayed(t *testing.T) {
	// Two connections meet the removal of the only other server, two do not. Lines need no order.
	text := `length: 10s
servers: [{count: 2}]
traffic: {trace: t.csv}
policies: [{dispatch: hash, affinity: hash}, {dispatch: rr}, {dispatch: awfd, interval: 1s}]
events: [{at: 5s, fail: 1}]
`
	s, err := Parse("test.yaml", []byte(text), files(map[string]string{"t.csv": "start,duration\n4,3\n0.5,2\n4,3\n6,1\n"}))
	if err != nil {
		t.Fatal(err)
	}
	outcome := once(t, s, 1)
	if share := outcome.Shares["rr-cookie.broken"]; share.Of != 4 || share.Hits != 1 {
		t.Errorf("%d of %d broken by the failure of one of two servers with a connection each", share.Hits, share.Of)
	}
	if share := outcome.Shares["hash-hash.broken"]; share.Of != 4 || share.Hits > 2 {
		t.Errorf("%d of %d broken", share.Hits, share.Of)
	}
	for _, point := range outcome.Points {
		want, known := map[float64]float64{1: 1, 3: 0, 4.05: 2, 8: 0}[point.X]
		if point.Series == "connections/awfd-cookie" && known && point.Y != want && point.X < 5 {
			t.Errorf("%g connections at %g s, want %g", point.Y, point.X, want)
		}
	}
}

func TestShapesHaveTheirMeans(t *testing.T) {
	for _, shape := range shapes {
		d := shaped(shape, 2)
		want := map[string]float64{"exponential": 1, "pareto": 2, "constant": 1, "web": 22, "facebook": 47}[shape]
		if mean := d.Mean(); math.Abs(mean/want-1) > 0.3 {
			t.Errorf("%s: mean %g s, want about %g", shape, mean, want)
		}
	}
}

// examples are the files that users begin with.
func examples(t *testing.T) map[string]*Scenario {
	t.Helper()
	const folder = "../../../../examples/sim"
	names, err := filepath.Glob(folder + "/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	all := map[string]*Scenario{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(name, text, func(named string) ([]byte, error) { return os.ReadFile(filepath.Join(folder, named)) })
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = s
	}
	return all
}

func TestExamplesHaveEveryKindOfPolicy(t *testing.T) {
	shown := map[string]bool{}
	for _, s := range examples(t) {
		for _, policy := range s.Policies {
			shown[policy.Dispatch], shown[policy.Affinity] = true, true
		}
	}
	for _, what := range append(dispatches, affinities...) {
		if !shown[what] {
			t.Errorf("no example has %s", what)
		}
	}
}

func TestExamplesShowWhatTheySay(t *testing.T) {
	for name, s := range examples(t) {
		if len(s.Expect) == 0 {
			t.Errorf("%s expects nothing: say what it shows", name)
		}
		results, err := sim.NewRunner(sim.Plan{Experiments: []sim.Experiment{s.Experiment(name)}, Seeds: 1, Base: 1}).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range results[0].Findings {
			if finding.Verdict == sim.Fail || finding.Verdict == sim.Inconclusive {
				t.Errorf("%s: %s is %g, expected %v", name, finding.What, finding.Ours.Mean, finding.Band)
			}
		}
	}
}

// Whatever a file says, it is refused or it ends.
func FuzzScenarios(f *testing.F) {
	f.Add(small)
	f.Add(strings.Replace(small, "connections: 500, lifetimes: {shape: exponential, mean: 5s}", "trace: trace.csv", 1))
	f.Add(serving)
	f.Add(strings.Replace(serving, "shape: exponential", "file: lives.csv", 1))
	f.Add("length: 2s\nservers: [{count: 2, speed: 0.01}]\ntraffic: {load: 9, work: {shape: bimodal, short: 1us, long: 30s, part: 0.5}}\npolicies: [{dispatch: lcf, interval: 1ms}]\n")
	f.Add("length: 2s\nservers: [{count: 2}]\ntraffic: {rate: 9}\npolicies: [{dispatch: rr}]\nevents: [{at: 0s, every: 1ms, add: 1, fail: 1}]\n")
	named := files(map[string]string{"trace.csv": "start,duration\n0,1\n1,3\n1,0\n", "lives.csv": "seconds\n1\n2\n"})
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("fuzz.yaml", []byte(text), named)
		if err != nil {
			var objection *Error
			if !errors.As(err, &objection) || objection.Line < 1 || objection.Remedy == "" {
				t.Errorf("%v: no line, or no remedy", err)
			}
			return
		}
		if s.steps() > 1e6 {
			return
		}
		if _, err := sim.Once(context.Background(), s.Experiment("fuzz"), 1); err != nil {
			t.Error(fmt.Errorf("%w\n%s", err, text))
		}
	})
}

// drawn is a random scenario that is small enough to be run.
func drawn(t *rapid.T) string {
	var text strings.Builder
	seconds := func(name string, least, most int) string {
		return fmt.Sprintf("%ds", rapid.IntRange(least, most).Draw(t, name))
	}
	fmt.Fprintf(&text, "length: %s\nwarm_up: %s\n", seconds("length", 10, 30), seconds("warm-up", 0, 5))
	fmt.Fprintf(&text, "servers: [{name: a, count: %d}, {count: %d, weight: %d}]\n", rapid.IntRange(1, 20).Draw(t, "a"), rapid.IntRange(1, 9).Draw(t, "b"),
		rapid.IntRange(1, 256).Draw(t, "weight"))
	fmt.Fprintf(&text, "table_slots: 251\nload_balancers: %d\n", rapid.IntRange(1, 9).Draw(t, "load balancers"))
	fmt.Fprintf(&text, "traffic: {rate: %d, lifetimes: {shape: %s, mean: %s}}\npolicies:\n", rapid.IntRange(0, 100).Draw(t, "rate"),
		rapid.SampledFrom(shapes).Draw(t, "shape"), seconds("mean", 1, 40))
	fmt.Fprintf(&text, "  - {name: turns, dispatch: %s, counters: %d}\n", rapid.SampledFrom(byTurns).Draw(t, "turns"), rapid.IntRange(1, 9).Draw(t, "counters"))
	for i := range rapid.IntRange(1, 2).Draw(t, "policies") {
		fmt.Fprintf(&text, "  - {name: p%d, dispatch: %s}\n", i, rapid.SampledFrom(dispatches).Draw(t, "dispatch"))
		fmt.Fprintf(&text, "  - {name: q%d, dispatch: %s, affinity: %s}\n", i, rapid.SampledFrom(byTable).Draw(t, "table"), rapid.SampledFrom(affinities).Draw(t, "affinity"))
	}
	text.WriteString("events:\n  - {at: 0s, rate: 50}\n")
	for range rapid.IntRange(0, 4).Draw(t, "events") {
		fmt.Fprintf(&text, "  - {at: %s, every: %s, ", seconds("at", 0, 10), seconds("every", 1, 9))
		if rapid.Bool().Draw(t, "of a group") {
			text.WriteString("group: a, ")
		}
		fmt.Fprintf(&text, "%s: %d}\n", rapid.SampledFrom([]string{"add", "remove", "fail", "rate", "load_balancers"}).Draw(t, "what"), rapid.IntRange(1, 30).Draw(t, "how many"))
	}
	return text.String()
}

// playDrawn runs a scenario that was drawn, which must be a good one, once.
func playDrawn(t *rapid.T, text string) (*Scenario, *sim.Outcome) {
	s, err := Parse("drawn.yaml", []byte(text), files(nil))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	outcome, err := sim.Once(context.Background(), s.Experiment("drawn"), rapid.Uint64().Draw(t, "seed"))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s, outcome
}

func TestEveryScenarioEndsAndCookiesBreakByFailureOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawn(t)
		s, outcome := playDrawn(t, text)
		for _, policy := range s.Policies {
			share := outcome.Shares[policy.Name+".broken"]
			if cookie := policy.Affinity == "cookie"; cookie && share.Hits > 0 && !strings.Contains(text, "fail") || share.Hits > share.Of {
				t.Errorf("%s breaks %d of %d\n%s", policy.Name, share.Hits, share.Of, text)
			}
		}
	})
}
