package comparison

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// An Event is something that happens to a service while clients have connections to it.
type Event struct {
	Name, About string
	Balancer    bool // it happens to one: nothing that a contender without balancers can be put to
	arrange     func(*round)
	do          func(*round)
	undo        func(*round)
	changes     float64 // a minute, where that is what the event is about
}

// A Step is an event of a schedule, and whom it happens to.
type Step struct {
	Event    string `json:"event"`
	Server   int    `json:"server"`
	Balancer int    `json:"balancer"`
	Seed     uint64 `json:"seed,string"` // of the clients
}

// Events are all, in their order.
func Events() []Event {
	all := []Event{
		{Name: "server-added", About: "a sixth server joins",
			do: func(r *round) { r.set(servers, Active) }, undo: func(r *round) { r.set(servers, Absent) }},
		{Name: "server-drained", About: "a server gets no new connections",
			do: func(r *round) { r.set(r.step.Server, Draining) }, undo: func(r *round) { r.set(r.step.Server, Active) }},
		{Name: "server-killed", About: "a server loses its power",
			do: func(r *round) { r.killServer(r.step.Server) }, undo: func(r *round) { r.bootServer(r.step.Server) }},
		{Name: "balancer-added", About: "a balancer joins", Balancer: true,
			arrange: func(r *round) { r.killBalancer(r.step.Balancer) }, do: func(r *round) { r.bootBalancer(r.step.Balancer) }},
		{Name: "balancer-killed", About: "a balancer loses its power; the router sees it at once", Balancer: true,
			do: func(r *round) { r.killBalancer(r.step.Balancer) }, undo: func(r *round) { r.bootBalancer(r.step.Balancer) }},
		{Name: "balancer-restarted", About: "a balancer's service is stopped and started", Balancer: true,
			do: func(r *round) { r.balancing.Restart(r.step.Balancer) }},
		{Name: "balancer-reloaded", About: "a balancer is reloaded or upgraded in place", Balancer: true,
			do: func(r *round) { r.balancing.Reload(r.step.Balancer) }},
		{Name: "both", About: "a server is drained, and a second later a balancer loses its power", Balancer: true,
			do: func(r *round) {
				r.set(r.step.Server, Draining)
				pause(r.t.Context, time.Second)
				r.killBalancer(r.step.Balancer)
			},
			undo: func(r *round) {
				r.bootBalancer(r.step.Balancer)
				r.set(r.step.Server, Active)
			}},
		{Name: "servers-replaced", About: "all servers, one after another: drained, switched off, booted", do: (*round).replaceServers},
		{Name: "balancers-replaced", About: "all balancers, one after another: without traffic, switched off, booted", Balancer: true, do: (*round).replaceBalancers},
	}
	for _, rate := range []float64{12, 30, 60} {
		all = append(all, Event{Name: fmt.Sprintf("rate-%.0f", rate), About: fmt.Sprintf("%.0f changes a minute: servers drained and back, balancers killed and back", rate),
			changes: rate, do: (*round).churn, undo: (*round).restore})
	}
	return all
}

// shortEvents are those of a short run.
var shortEvents = []string{"server-added", "server-killed", "balancer-killed", "balancer-restarted", "both"}

// Schedule is what happens, to whom, and what the clients of each step do: the same for all contenders, by the seed alone.
func Schedule(seed uint64, events []Event) (steps []Step) {
	for _, event := range events {
		// A step's choices are its own, so that fewer events change nothing of the others.
		random := rand.New(rand.NewPCG(seed, hash(event.Name)))
		steps = append(steps, Step{Event: event.Name, Server: 1 + random.IntN(first), Balancer: 1 + random.IntN(2), Seed: random.Uint64()})
	}
	return steps
}

// hash is FNV-1a.
func hash(text string) uint64 {
	sum := uint64(14695981039346656037)
	for _, b := range []byte(text) {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	return sum
}

// every is the name that stands for all.
const every = "all"

// choose picks by names, in the order of all. None, or every: all of them.
func choose[T any](all []T, name func(T) string, wanted []string) (chosen []T, err error) {
	var known []string
	for _, one := range all {
		known = append(known, name(one))
		if len(wanted) == 0 || slices.Contains(wanted, every) || slices.Contains(wanted, name(one)) {
			chosen = append(chosen, one)
		}
	}
	for _, one := range wanted {
		if one != every && !slices.Contains(known, one) {
			return nil, fmt.Errorf("%w: there is no %q: use some of %s", ErrUsage, one, strings.Join(known, ","))
		}
	}
	return chosen, nil
}
