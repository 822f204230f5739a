package sessions

import (
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	goAtOnce     = 3  // of a service
	betweenAll   = 10 // connections of each client, between two events
	betweenShort = 3
	movedFew     = 6 // sessions that may all have been curl's by their ids, which only the server knows that has made them

	browsedMin      = 15  // connections of a browser, one after another
	browsedTogether = 0.2 // of those side by side that resume a session: it has two tickets for six (measured: a third)
)

// software is a program that serves a service of its own, and its clients; Go's is one of them.
type software struct {
	program, vip string
	port         uint16
	speech       string
	clients      []string
}

var allSoftware = []software{
	{"nginx", "198.51.100.10", 443, "http", []string{"curl", "openssl", "python3"}},
	{"apache2", "198.51.100.11", 443, "http", []string{"curl", "openssl", "python3"}},
	{"haproxy", "198.51.100.12", 443, "http", []string{"curl", "openssl", "python3"}},
	{"dovecot", "198.51.100.13", 993, "imap", []string{"openssl", "python3"}},
}

func (s *software) service() *fleet.Service {
	return service(s.vip, func(of *fleet.Service) {
		of.Name, of.Ports = s.program, []uint16{s.port}
		unchecked(of)
	})
}

// unchecked: checks fail where the machine is busy, and sessions go elsewhere.
func unchecked(of *fleet.Service) { of.Health = model.Health{} }

func runSoftware(run *scenario.Run) { changesOf(run, betweenAll, allSoftware) }
func runNginx(run *scenario.Run)    { changesOf(run, betweenShort, allSoftware[:1]) }

// changesOf has one series of events for all servers and clients.
func changesOf(run *scenario.Run, between int, all []software) {
	var services []*fleet.Service
	var clients []session.Clients
	for _, one := range all {
		of := one.service()
		script.Check(run.FindSoftware(append(one.clients, one.program)...))
		services = append(services, of)
		clients = append(clients, session.Clients{Name: one.program + "_go", Target: of.Target(), Speech: one.speech, Sessions: goAtOnce})
		for _, program := range one.clients {
			clients = append(clients, session.Clients{Name: one.program + "_" + program, Target: of.Target(), Speech: one.speech, Program: program, Sessions: 1})
		}
	}
	seen := map[string]session.Outcome{}
	with := setup("software", services...)
	with.Tickets = true
	outcome := run.Uncounted(with, func(t *world.Trial) {
		certificate := t.Certificate()
		for i, one := range all {
			t.StartSoftware(one.program, services[i], certificate)
		}
		seen = changes(t, between, func(*world.Sessions) {}, clients...)
	})
	judge(run, outcome, seen)
	moved, elsewhere := 0, 0
	for _, of := range seen {
		moved += of.Moved[world.ServerName(removed)]
		elsewhere += of.Elsewhere
	}
	run.Result.Measure("resumed_elsewhere", float64(elsewhere))
	run.Result.Expect(elsewhere > 0 || moved < movedFew, "none of %d sessions of the server that was removed was resumed at another", moved)
}

// runChromium has pages that make connections side by side. Servers have keys of their own: a session is resumed at its own server or not at all.
func runChromium(run *scenario.Run) {
	one := &allSoftware[0]
	script.Check(run.FindSoftware(one.program, world.Browser))
	of := one.service()
	var seen world.Visited
	outcome := run.Uncounted(setup("chromium", of), func(t *world.Trial) {
		certificate := t.Certificate()
		t.StartSoftware(one.program, of, certificate)
		page := t.Visit(certificate)
		t.Event("add server s5", func() { t.AddServer(5); t.Apply() })
		t.Event("drain server s1", func() { t.Drain(1); t.Apply() })
		t.Event("kill load balancer lb1", func() { t.CrashLB(1) })
		t.Event("lb1 returns", func() { t.ReturnLB(1) })
		seen = page.End()
	})
	outcome.Completed = seen.Alone.Connections + seen.Together.Connections // but for the first
	outcome.Attempted, outcome.Broken = outcome.Completed+seen.Failed, seen.Failed
	run.Result.AddTrial(outcome, false)
	for name, of := range map[string]world.Visits{"alone": seen.Alone, "together": seen.Together} {
		run.Result.Measure("connections_"+name, float64(of.Connections))
		run.Result.Measure("resumed_"+name, float64(of.Resumed))
		run.Result.Measure("servers_"+name, float64(len(of.Servers)))
	}
	run.Result.Expect(seen.Failed == 0, "%d requests failed", seen.Failed)
	run.Result.Expect(seen.Alone.Connections >= browsedMin && seen.Alone.Resumed == seen.Alone.Connections,
		"%d of %d connections one after another resumed a session, at %v", seen.Alone.Resumed, seen.Alone.Connections, seen.Alone.Servers)
	run.Result.Expect(float64(seen.Together.Resumed) >= browsedTogether*float64(seen.Together.Connections), "%d of %d connections side by side resumed a session, at %v",
		seen.Together.Resumed, seen.Together.Connections, seen.Together.Servers)
	run.Result.Expect(total(outcome, "held_hello") > 0, "no segment of a hello was held")
}
