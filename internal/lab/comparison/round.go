package comparison

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// detection is how long a dead server goes unnoticed by whoever checks: so many checks must fail, and the last one must run out of time.
const detection = checkFall*checkInterval + checkTimeout

// The checks of all contenders: slow enough that a busy machine looks like no dead server.
const (
	checkInterval = 500 * time.Millisecond
	checkTimeout  = 500 * time.Millisecond
	checkRise     = 2
	checkFall     = 4
)

// round is one contender in its network.
type round struct {
	*sizes
	t         *world.Trial
	contender *Contender
	balancing Balancing
	router    *router
	step      Step
	event     *Event
	pool      []State
	announced []bool // balancers, from 1
	died      map[string]time.Time
	done      int // changes, where their rate counts
	note      func(format string, values ...any)
}

func newRound(t *world.Trial, c *Contender, balancing Balancing, s *sizes) *round {
	r := &round{sizes: s, t: t, contender: c, balancing: balancing, router: newRouter(t), pool: make([]State, servers), announced: make([]bool, 1+c.Balancers)}
	for i := range first {
		r.pool[i] = Active
	}
	for i := 1; i <= c.Balancers; i++ {
		r.announced[i] = true
	}
	return r
}

// start brings the contender up, and makes it the way to the VIP.
func (r *round) start() {
	r.balancing.Start(r.pool)
	r.route()
}

// route makes the router send to the balancers that announce the VIP, with even shares of what comes.
func (r *round) route() {
	if r.contender.Balancers == 0 {
		return
	}
	var living []int
	for i := 1; i <= r.contender.Balancers; i++ {
		if r.announced[i] {
			living = append(living, i)
		}
	}
	r.router.send(balancers(living...))
}

func (r *round) announce(i int, yes bool) {
	r.announced[i] = yes
	r.route()
}

// set has a server in another state at all balancers.
func (r *round) set(i int, state State) {
	r.note("s%d: %s", i, [...]string{"absent", "active", "draining"}[state])
	r.pool = slices.Clone(r.pool)
	r.pool[i-1] = state
	r.balancing.Change(r.pool)
}

// killServer ends a server, and waits until a checker has noticed: the contender's own, or one beside it.
func (r *round) killServer(i int) {
	r.note("s%d loses its power", i)
	r.died[world.ServerName(i)] = time.Now()
	r.t.Failures.CutServer(i)
	pause(r.t.Context, detection)
	if !r.contender.Checks {
		r.set(i, Absent)
	}
}

// bootServer brings a server back, and waits as long as checkers need.
func (r *round) bootServer(i int) {
	r.note("s%d boots", i)
	r.t.Failures.RebootServer(i)
	pause(r.t.Context, (checkRise+1)*checkInterval)
	if !r.contender.Checks || r.pool[i-1] != Active {
		r.set(i, Active)
	}
}

func (r *round) killBalancer(i int) {
	r.note("lb%d loses its power", i)
	r.t.Failures.CutLB(i)
	r.announced[i] = false
	r.route()
	r.balancing.Kill(i)
}

func (r *round) bootBalancer(i int) {
	r.note("lb%d boots", i)
	r.t.Failures.RejoinLB(i)
	r.balancing.Boot(i)
	r.announce(i, true)
	r.note("lb%d is there", i)
}

func (r *round) replaceServers() {
	for i := 1; i <= first; i++ {
		r.set(i, Draining)
		pause(r.t.Context, r.between)
		r.killServer(i)
		r.bootServer(i)
		pause(r.t.Context, r.between)
	}
}

func (r *round) replaceBalancers() {
	for i := 1; i <= r.contender.Balancers; i++ {
		r.note("lb%d is without traffic", i)
		r.announce(i, false)
		pause(r.t.Context, r.between)
		r.killBalancer(i)
		r.bootBalancer(i)
		pause(r.t.Context, r.between)
	}
}

// churn makes changes at a rate: a server drained, a balancer killed, both back, the next ones.
func (r *round) churn() {
	interval := time.Duration(float64(time.Minute) / r.event.changes)
	begin := time.Now()
	r.done = 0
	for k := 0; time.Duration(k)*interval < r.churning; k++ {
		server, balancer := 1+(r.step.Server+k/4)%first, 1+(r.step.Balancer+k/4)%2
		switch {
		case k%4 == 0:
			r.set(server, Draining)
		case k%4 == 2:
			r.set(server, Active)
		case r.contender.Balancers == 0:
		case k%4 == 1:
			r.killBalancer(balancer)
		default:
			r.bootBalancer(balancer)
		}
		r.done++
		if rest := time.Until(begin.Add(time.Duration(k+1) * interval)); rest > 0 {
			pause(r.t.Context, rest)
		}
	}
}

// restore brings back whatever is away.
func (r *round) restore() {
	for i := 1; i <= r.contender.Balancers; i++ {
		if !r.announced[i] {
			r.bootBalancer(i)
		}
	}
	for i := 1; i <= first; i++ {
		if r.pool[i-1] != Active {
			r.set(i, Active)
		}
	}
}

// play lets a step happen to clients of its own, and returns what they have seen.
func (r *round) play(step Step, event *Event) (measured Measured) {
	r.step, r.event, r.died = step, event, map[string]time.Time{}
	if event.arrange != nil {
		event.arrange(r)
	}
	if r.contender.Balancers > 0 { // even shares
		r.router.forget()
		r.route()
	}
	load := r.t.Traffic.GenerateTimed(step.Seed, r.patience, r.flows()...)
	r.t.Traffic.Until(load, time.Minute, "all connections are open", func(p traffic.Progress) bool {
		return p.OpenByFlow[flowOpen] >= r.connections && p.Served() >= r.connections
	})
	pause(r.t.Context, r.before)
	begin := time.Now()
	r.note("event %s", event.Name)
	script.Checkf(script.Try(func() { event.do(r) }), "%s", event.Name)
	changed := time.Now()
	r.note("event %s is done", event.Name)
	pause(r.t.Context, r.settle)
	settled := time.Now()
	pause(r.t.Context, r.after)
	ended := time.Now()
	load.Finish(r.t.Context)
	_, connections := load.State()
	measured = count(window{begin, changed, settled, ended}, connections, load.Answers, r.died)
	measured.Step = step
	if event.changes > 0 {
		measured.ChangesPerMinute = float64(r.done) / changed.Sub(begin).Minutes()
	}
	if event.undo != nil {
		script.Checkf(script.Try(func() { event.undo(r) }), "after %s", event.Name)
	}
	return measured
}

const (
	flowOpen  = "open"
	flowShort = "short"
)

// flows are connections that stay and ask now and then, and others that come for one request.
func (r *round) flows() []traffic.Flow {
	flows := []traffic.Flow{{Name: flowOpen, Target: target.String(), Concurrent: r.connections, PerSecond: 400, Repeat: true, Requests: []traffic.Request{{Path: world.PathName, Pause: r.thinks}}}}
	if r.shorts > 0 {
		flows = append(flows, traffic.Flow{Name: flowShort, Target: target.String(), Concurrent: 400, PerSecond: r.shorts, Requests: []traffic.Request{{Path: world.PathName}}})
	}
	return flows
}

// measureCost has wrk ask as fast as it can, and sees what CPU time that takes. The least of several runs counts.
func (r *round) measureCost() (least Cost) {
	for again := range r.repeats {
		before, own := spent(), r.ownCPU()
		requests, cost := r.wrk()
		cost.Total, cost.Own = (spent()-before)*100_000/requests, (r.ownCPU()-own)*100_000/requests
		if again == 0 || cost.Total < least.Total {
			least = cost
		}
	}
	return least
}

// wrk asks by 64 connections as fast as it can.
func (r *round) wrk(options ...string) (requests float64, cost Cost) {
	var output host.Transcript
	arguments := append([]string{"-t", "1", "-c", "64", "-d", fmt.Sprintf("%.0fs", r.work.Seconds()), "--latency"}, options...)
	load := script.Must(r.t.Lab.Start(host.Spawn{Node: world.ClientNode, Program: "wrk", Stdout: &output, Arguments: append(arguments, "http://"+target.String()+world.PathName)}))
	load.Finish()
	requests, cost, err := parseWrk(output.String())
	script.Checkf(err, "measure with wrk")
	return requests, cost
}

var (
	wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in ([0-9.]+[a-z]+),`)
	wrkLatency  = regexp.MustCompile(`(?m)^\s*(50|99)%\s+([0-9.]+[a-z]+) *$`)
	wrkErrors   = regexp.MustCompile(`Socket errors: .*|Non-2xx.*`)
)

// parseWrk reads what wrk --latency has printed.
func parseWrk(text string) (requests float64, cost Cost, err error) {
	found, latencies := wrkRequests.FindStringSubmatch(text), wrkLatency.FindAllStringSubmatch(text, -1)
	if found == nil || len(latencies) != 2 {
		return 0, Cost{}, fmt.Errorf("wrk has printed no result: %q", text)
	}
	cost.Errors = wrkErrors.FindString(text)
	requests, err = strconv.ParseFloat(found[1], 64)
	took, wrong := time.ParseDuration(found[2])
	err = errors.Join(err, wrong)
	for i, into := range []*float64{&cost.P50, &cost.P99} {
		value, wrong := time.ParseDuration(latencies[i][2])
		err, *into = errors.Join(err, wrong), float64(value)/float64(time.Millisecond)
	}
	if err == nil && (requests == 0 || took <= 0) {
		err = errors.New("wrk was not answered")
	}
	cost.PerSecond = requests / took.Seconds()
	return requests, cost, err
}
