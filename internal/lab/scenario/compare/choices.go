// choices: servers that accept connections or pass them on, by their own load of the moment (SHELL III, 6LB IV).
package compare

import (
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/data"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/script"
)

// offers is how new connections are offered to servers.
type offers struct {
	choices  model.Choices
	affinity model.Affinity
	forward  model.Forward
}

// Implementation constants. Work is sleeping, so that a busy machine changes little; a window of 10 offers in place of 50 is about as long as
// in 6LB, whose servers get more connections.
const (
	choicesServers  = 6
	choicesSlow     = 0.5 // seconds of work in a second
	choicesFast     = 1.0
	choicesLoad     = 0.5 // of the capacity of all servers while nothing else runs there
	choicesWork     = 20 * time.Millisecond
	choicesLimit    = 64  // requests in a server, beyond which it refuses
	choicesLeft     = 0.2 // of its speed to a server that has other work
	choicesShort    = 4 * time.Second
	choicesMoves    = time.Second // short form: other work moves to the next server
	choicesMovesFar = 3 * time.Second
	choicesStatic   = 3 // threshold
	choicesWindow   = 10
)

// What choices promise: a mean time by so much below that of hash under the same arrivals, and packets between candidates that are not more
// than one for each connection (two candidates) but for SYNs that are sent again.
const (
	choicesBetter   = 1.2
	choicesPackets  = 1.05
	choicesDecision = 0.02 // of the connections are passed on at least, else nobody decided anything
)

// offered makes a contender of a service with two candidates.
func offered(policy model.AcceptPolicy, affinity model.Affinity, forward model.Forward) contender {
	accept := model.Accept{Policy: model.AcceptStatic, Threshold: choicesStatic}
	if policy == model.AcceptDynamic {
		accept = model.Accept{Policy: model.AcceptDynamic, Window: choicesWindow}
	}
	return contender{dispatch: model.DispatchChoices, offers: &offers{model.Choices{Accept: accept}, affinity, forward}}
}

func runChoices(run *scenario.Run) {
	one := scenario.PolicyService(scenario.VIP4, model.DispatchChoices)
	one.CrossFamily = true // srv6 needs servers with IPv6 addresses
	what := world.Setup{Name: "choices", Services: []*fleet.Service{one}, Reports: true,
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, choicesServers), FabricMTU: 1700}}
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
			offered(model.AcceptDynamic, model.AffinityCookie, model.ForwardGUE),
			offered(model.AcceptStatic, model.AffinityCookie, model.ForwardGUE)),
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
				t.Slow(visited, 1)
			}
			t.Slow(next, choicesLeft)
		})
		visited = next
	}
	t.AtTime(begin.Add(length), "other work ends", func() { t.Slow(visited, 1) })
}

// passedOn is how many packets the servers have passed on to the next candidate.
func passedOn(t *world.Trial) (packets uint64) {
	var servers []string
	for i := range t.Topology.Servers {
		servers = append(servers, world.ServerName(i+1))
	}
	for verdict, count := range script.Must(t.Verdicts(servers...)) {
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
		ratio := run.Result.Measurements[name+"_mean_ms_ratio_to_hash"]
		run.Result.Expect(ratio >= choicesBetter, "%s: the mean time is only %.2f times as good as that of hash", name, ratio)
		run.Result.Expect(refused[name] <= refused["hash"], "%s: servers refused %d connections, %d with hash", name, refused[name], refused["hash"])
		run.Result.Expect(even > scenario.Median(fairness["hash"]), "%s: connections are spread by %.2f, no better than by hash", name, even)
		run.Result.Expect(cost >= choicesDecision && cost <= choicesPackets, "%s: %.3f packets from candidate to candidate for each connection", name, cost)
	}
}
