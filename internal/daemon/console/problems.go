package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// Levels of problems, the worst first.
const (
	levelBad  = "bad"  // clients are harmed, or are as soon as one thing more fails
	levelWarn = "warn" // somebody should look
	levelOK   = "ok"
)

// problem is what is not as it should be, in words.
type problem struct {
	Level string `json:"level"`
	Text  string `json:"text"`
	Since int64  `json:"since"` // when this console saw it first, in milliseconds
}

// problemsOf lists what is wrong, the worst first.
func problemsOf(v *View) (list []problem) {
	for _, text := range v.Problems {
		list = append(list, problem{Level: levelBad, Text: text})
	}
	joined := map[*ballastv1.NodeStatus]bool{}
	services := serviceProblems(v, joined)
	list = append(list, nodesProblems(v.Nodes, joined)...) // causes before what they lead to
	list = append(list, services...)
	list = slices.Compact(list)
	slices.SortStableFunc(list, func(a, b problem) int { return cmp.Compare(a.Level, b.Level) })
	return list
}

// serviceProblems lists what is wrong with servers. What the agent of an unhealthy server says of itself is told with it, as the likely
// cause: joined are such agents.
func serviceProblems(v *View, joined map[*ballastv1.NodeStatus]bool) (list []problem) {
	servers := serversByService(v)
	same := map[string][]string{} // services with the same problem
	var order []problem
	add := func(level, service, text string) {
		if same[text] == nil {
			order = append(order, problem{Level: level, Text: text})
		}
		same[text] = append(same[text], service)
	}
	for i := range v.Services {
		name := v.Services[i].Name
		taking := 0
		var unhealthy, agentless []string
		var last *Server
		for _, s := range servers[name] {
			if takesNew(s) {
				taking++
			}
			if s.Health == health.Unhealthy && !s.Removed {
				unhealthy, last = append(unhealthy, s.Server.Name), s
			}
			if s.Agent == "none" && !s.Removed {
				agentless = append(agentless, s.Server.Name)
			}
		}
		what := unhealthyServers(v, unhealthy, last, joined)
		switch used := v.Services[i].Health.AllDown; {
		case taking > 0:
		case what == "":
			what = "no server takes new connections"
		case used == model.AllDownNone:
			what = "no server takes new connections: " + what
		default:
			what = fmt.Sprintf("no server is healthy, new connections go to them all the same (all_down: %s): %s", used, what)
		}
		if what != "" {
			add(levelBad, name, what)
		}
		if len(agentless) > 0 {
			add(levelWarn, name, fmt.Sprintf("%s without a connected agent: %s", areServers(len(agentless)), model.Some(agentless)))
		}
	}
	for _, p := range order {
		list = append(list, problem{Level: p.Level, Text: model.Some(same[p.Text]) + ": " + p.Text})
	}
	return list
}

// unhealthyServers says which servers of a service are unhealthy, and of a single one why; empty: none is.
func unhealthyServers(v *View, names []string, last *Server, joined map[*ballastv1.NodeStatus]bool) string {
	if len(names) == 0 {
		return ""
	}
	if len(names) > 1 {
		return fmt.Sprintf("%s unhealthy: %s", areServers(len(names)), model.Some(names))
	}
	text := "server " + names[0] + " is unhealthy"
	if last.HealthDetail != "" {
		text += ": " + last.HealthDetail
	}
	for _, n := range v.Nodes {
		if n.Role == "agent" && n.Name == names[0] && (n.Ready == "lost" || len(n.Problems) > 0) {
			joined[n] = true
			text = fmt.Sprintf("agent %s: %s; %s", n.Name, strings.Join(n.Problems, "; "), text)
		}
	}
	return text
}

func serversByService(v *View) map[string][]*Server {
	servers := map[string][]*Server{}
	for i := range v.Servers {
		s := &v.Servers[i]
		servers[s.Service] = append(servers[s.Service], s)
	}
	return servers
}

// takesNew: a server gets new connections, as far as its state and its health go.
func takesNew(s *Server) bool {
	return !s.Removed && (s.Server.State == "" || s.Server.State == "active") && s.Health != health.Unhealthy
}

func areServers(n int) string { return model.Counted(n, "server is", "servers are") }

var roleNames = map[string]string{"lb": "load balancer", "agent": "agent", "controller": "controller"}

// nodesProblems lists what is wrong with nodes. What is wrong with several of a role in the same words is one problem.
func nodesProblems(nodes []*ballastv1.NodeStatus, joined map[*ballastv1.NodeStatus]bool) (list []problem) {
	type fault struct{ role, level, text string }
	names, order := map[fault][]string{}, []fault{}
	for _, n := range nodes {
		if joined[n] {
			continue
		}
		for _, p := range nodeProblems(n) {
			f := fault{cmp.Or(roleNames[n.Role], n.Role), p.Level, p.Text}
			if names[f] == nil {
				order = append(order, f)
			}
			names[f] = append(names[f], n.Name)
		}
	}
	for _, f := range order {
		who := f.role + " " + names[f][0]
		if n := len(names[f]); n > 1 {
			who = fmt.Sprintf("%d %ss (%s)", n, f.role, model.Some(names[f]))
		}
		list = append(list, problem{Level: f.level, Text: who + f.text})
	}
	return list
}

// nodeProblems lists what is wrong with a node, without its name.
func nodeProblems(n *ballastv1.NodeStatus) (list []problem) {
	add := func(level, format string, args ...any) {
		list = append(list, problem{Level: level, Text: fmt.Sprintf(format, args...)})
	}
	level := levelWarn
	switch {
	case n.Ready == "lost":
		if n.Role != "agent" {
			level = levelBad
		}
		if len(n.Problems) == 0 {
			add(level, ": lost, was connected and is not any more")
		}
		for _, text := range n.Problems { // why it is
			add(level, ": lost: %s", text)
		}
		return list
	case n.Ready == "no":
		level = levelBad
		if len(n.Problems) == 0 {
			add(levelBad, ": not ready")
		}
	}
	if n.Health == health.Unhealthy {
		add(levelBad, ": unhealthy: %s", cmp.Or(n.HealthDetail, "its check fails"))
	}
	for _, text := range n.Problems {
		add(level, ": %s", text)
	}
	return list
}

// headline says how the fleet is, in one sentence: the worst problem, if there is one.
func headline(v *View, problems []problem) (level, text string) {
	taking, all := 0, 0
	for i := range v.Servers {
		if v.Servers[i].Removed {
			continue
		}
		all++
		if takesNew(&v.Servers[i]) {
			taking++
		}
	}
	switch {
	case len(problems) > 0:
		return problems[0].Level, problems[0].Text
	case len(v.Services) == 0:
		return levelOK, "No service is configured yet."
	case taking == all:
		return levelOK, fmt.Sprintf("Nothing is wrong: %s of %s take new connections.", count(all, "server"), count(len(v.Services), "service"))
	}
	return levelOK, fmt.Sprintf("Nothing is wrong: %d of %s of %s take new connections.", taking, count(all, "server"), count(len(v.Services), "service"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
