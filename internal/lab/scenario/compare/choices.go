// choices: servers that accept connections or pass them on, by their own load of the moment (SHELL III, 6LB IV).
package compare

import (
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// offers is how new connections are offered to servers.
type offers struct {
	choices  model.Choices
	affinity model.Affinity
}

// Implementation constants. Work is sleeping, so that a busy machine changes little.
const (
	choicesServers  = 6
	choicesSlow     = 0.5 // seconds of work in a second
	choicesFast     = 1.0
	choicesLoad     = 0.5 // of the capacity of all servers while nothing else runs there
	choicesWork     = 10 * time.Millisecond
	choicesLimit    = 64  // requests in a server, beyond which it refuses
	choicesLeft     = 0.2 // of its speed to a server that has other work
	choicesShort    = 6 * time.Second
	choicesMoves    = 2 * time.Second // short form: other work moves to the next server
	choicesMovesFar = 3 * time.Second
	choicesStatic   = 3 // threshold
)

// What choices promise under the same arrivals as hash and rr: so many times shorter times, by mean and by the 99th percentile. A dynamic
// limit promises less: it has a slow server accept its half of the connections as well, once the limit has followed. Packets between
// candidates are not more than one for each connection (two candidates) but for SYNs that are sent again.
const (
	choicesStaticMean, choicesStaticP99   = 2.0, 1.5
	choicesDynamicMean, choicesDynamicP99 = 1.3, 1.1
	choicesPackets                        = 1.05
	choicesDecision                       = 0.02 // of the connections are passed on at least, else nobody decided anything
)

// offered makes a contender of a service with two candidates.
func offered(policy model.AcceptPolicy, affinity model.Affinity) contender {
	accept := model.Accept{Policy: model.AcceptStatic, Threshold: choicesStatic}
	if policy == model.AcceptDynamic {
		accept = model.Accept{}
	}
	return contender{dispatch: model.DispatchChoices, offers: &offers{model.Choices{Accept: accept}, affinity}}
}

func runChoices(run *scenario.Run) {
	one := scenario.PolicyService(scenario.VIP4, model.DispatchChoices)
	what := world.Setup{Name: "choices", Services: []*fleet.Service{one}, Reports: true,
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, choicesServers)}}
	capacity := 0.0
	for i := range what.Topology.Servers {
		speed := unevenServer(i, choicesSlow, choicesFast)
		what.Topology.Servers[i].App = &world.AppServer{CPUs: speed, Sleep: true, Shared: true, Limit: choicesLimit}
		capacity += speed
	}
	rate, moves := choicesLoad*capacity/choicesWork.Seconds(), choicesMoves
	c := comparison{
		setup: what, length: run.Length(choicesShort), refuses: true,
		contenders: append(plain(model.DispatchHash, model.DispatchRR, model.DispatchP2C), spotlight(0),
			offered(model.AcceptDynamic, model.AffinityCookie), offered(model.AcceptStatic, model.AffinityCookie),
			offered(model.AcceptStatic, model.AffinityHistory)),
		flows: func(target string, seed uint64, length time.Duration) []traffic.Flow {
			micros := float64(choicesWork.Microseconds())
			return []traffic.Flow{{
				Name: "work", Target: target, Arrivals: &traffic.Arrivals{Seed: seed, PerSecond: rate, Length: length},
				Requests: []traffic.Request{{Path: "/work?bytes=1000&cost=" + traffic.Drawn,
					Draw: data.Distribution{Points: []data.Point{{}, {Value: 2 * micros, UpTo: 1}}, Smooth: true}}},
			}}
		},
	}
	if run.Duration != 0 {
		c.repetitions, moves = compareLong, choicesMovesFar
	}
	c.meanwhile = func(t *world.Trial, begin time.Time) { moveWork(t, begin, c.length, moves) }
	run.Result.Measure("offered_per_second", rate)
	compare(run, c)
	judgeChoices(run, c)
}

// moveWork has other work visit one server after the other.
func moveWork(t *world.Trial, begin time.Time, length, each time.Duration) {
	visited := 0
	for at := time.Duration(0); at < length; at += each {
		next := visited%choicesServers + 1
		t.AtTime(begin.Add(at), fmt.Sprintf("other work comes to %s", world.ServerName(next)), func() {
			if visited != 0 {
				t.Servers.Slow(visited, 1)
			}
			t.Servers.Slow(next, choicesLeft)
		})
		visited = next
	}
	t.AtTime(begin.Add(length), "other work ends", func() { t.Servers.Slow(visited, 1) })
}

// passedOn is how many packets the servers have passed on to the next candidate.
func passedOn(t *world.Trial) (packets uint64) {
	var servers []string
	for i := range t.Network.Servers {
		servers = append(servers, world.ServerName(i+1))
	}
	for verdict, count := range script.Must(t.Counters.Verdicts(servers...)) {
		if strings.HasPrefix(verdict, "passed_on_") {
			packets += count
		}
	}
	return packets
}

func judgeChoices(run *scenario.Run, c comparison) {
	refused, offered, packets := map[string]int{}, map[string]int{}, map[string]uint64{}
	fairness := map[string][]float64{}
	for _, cell := range run.Result.Comparison {
		refused[cell.Policy] += cell.Refused
		offered[cell.Policy] += cell.Offered
		packets[cell.Policy] += cell.PassedOn
		fairness[cell.Policy] = append(fairness[cell.Policy], cell.Fairness)
	}
	for _, one := range c.contenders {
		name := one.name()
		cost, even := float64(packets[name])/float64(offered[name]), scenario.Median(fairness[name])
		run.Result.Measure(name+"_refused", float64(refused[name]))
		run.Result.Measure(name+"_fairness", even)
		run.Result.Measure(name+"_passed_on_per_connection", cost)
		if one.offers == nil {
			run.Result.Expect(packets[name] == 0, "%s: servers passed on %d packets", name, packets[name])
			continue
		}
		mean, p99 := choicesStaticMean, choicesStaticP99
		if one.offers.choices.Accept.Policy == model.AcceptDynamic {
			mean, p99 = choicesDynamicMean, choicesDynamicP99
		} else {
			run.Result.Expect(even > scenario.Median(fairness["hash"]), "%s: connections are spread by %.2f, no better than by hash", name, even)
		}
		for _, blind := range []string{"hash", "rr"} {
			for measure, least := range map[string]float64{"_mean_ms": mean, "_p99_ms": p99} {
				ratio := run.Result.Measurements[blind+measure] / run.Result.Measurements[name+measure]
				run.Result.Expect(ratio >= least, "%s: %s is %.2f times as good as that of %s, less than %.1f", name, measure[1:], ratio, blind, least)
			}
		}
		run.Result.Expect(refused[name] <= refused["hash"], "%s: servers refused %d connections, %d with hash", name, refused[name], refused["hash"])
		run.Result.Expect(cost >= choicesDecision && cost <= choicesPackets, "%s: %.3f packets from candidate to candidate for each connection", name, cost)
	}
}
