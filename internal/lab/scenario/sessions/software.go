package sessions

import (
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
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

// program is one that serves a service of its own, and its clients; Go's is one of them.
type program struct {
	name, vip string
	port      uint16
	protocol  string
	clients   []string
}

var programs = []program{
	{"nginx", "198.51.100.10", 443, "http", []string{"curl", "openssl", "python3"}},
	{"apache2", "198.51.100.11", 443, "http", []string{"curl", "openssl", "python3"}},
	{"haproxy", "198.51.100.12", 443, "http", []string{"curl", "openssl", "python3"}},
	{"dovecot", "198.51.100.13", 993, "imap", []string{"openssl", "python3"}},
}

func (s *program) service() *fleet.Service {
	return service(s.vip, func(of *fleet.Service) {
		of.Name, of.Ports = s.name, []uint16{s.port}
		unchecked(of)
	})
}

// unchecked: checks fail where the machine is busy, and sessions go elsewhere.
func unchecked(of *fleet.Service) { of.Health = model.Health{} }

func runSoftware(run *scenario.Run) { changesOf(run, betweenAll, programs) }
func runNginx(run *scenario.Run)    { changesOf(run, betweenShort, programs[:1]) }

// changesOf has one series of events for all servers and clients.
func changesOf(run *scenario.Run, between int, all []program) {
	var services []*fleet.Service
	var clients []tlsclient.Group
	for _, one := range all {
		of := one.service()
		script.Check(software.Find(&run.Options.Options, append(one.clients, one.name)...))
		services = append(services, of)
		group := clientsOf(one.name+"_go", of.Target(), goAtOnce)
		group.Protocol = one.protocol
		clients = append(clients, group)
		for _, program := range one.clients {
			group.Name, group.Program, group.Clients, group.Early = one.name+"_"+program, program, 1, one.name == "nginx"
			clients = append(clients, group)
		}
	}
	seen := map[string]tlsclient.Outcome{}
	with := setup("software", services...)
	with.Tickets = true
	outcome := run.Uncounted(with, func(t *world.Trial) {
		certificate := t.Foreign.Certificate()
		for i, one := range all {
			t.Foreign.StartTLS(one.name, services[i], certificate)
		}
		seen = changes(t, between, func(*world.Sessions) {}, clients...)
	})
	judge(run, outcome, seen)
	early := seen["nginx_openssl"].Early
	run.Result.Measure("early_data", float64(early))
	run.Result.Expect(early > 0, "no request of OpenSSL was early data that nginx accepted")
	moved, elsewhere := 0, 0
	for _, of := range seen {
		moved += of.Moved[world.ServerName(removed)]
		elsewhere += of.Elsewhere
	}
	run.Result.Measure("resumed_elsewhere", float64(elsewhere))
	run.Result.Expect(elsewhere > 0 || moved < movedFew, "none of %d sessions of the server that was removed was resumed at another", moved)
}

// visited is what a browser has seen. Each request was a connection.
type visited struct {
	Alone    visits // connections one after another
	Together visits // several at once: a browser shows each ticket once, and has not one for each
	Failed   int    // requests
}

// visits are connections.
type visits struct {
	Connections, Resumed int
	Servers              map[string]int
}

// readVisits reads what a page shows at its end.
func readVisits(t *world.Trial, page *software.Visit) visited {
	var shown struct {
		Alone, Together []string
		Failed          int
	}
	page.End(t.Lab, &shown)
	if len(shown.Alone) > 0 { // it may be by a connection that Chromium has opened beside that of the page
		shown.Alone = shown.Alone[1:]
	}
	return visited{newVisits(shown.Alone), newVisits(shown.Together), shown.Failed}
}

func newVisits(answers []string) visits {
	seen := visits{len(answers), 0, map[string]int{}}
	for _, answer := range answers {
		now := script.Must(tlsclient.ReadHeader(answer))
		seen.Servers[now.Server]++
		if *now.Resumed {
			seen.Resumed++
		}
	}
	return seen
}

// runChromium has pages that make connections side by side. Servers have keys of their own: a session is resumed at its own server or not at all.
func runChromium(run *scenario.Run) {
	one := &programs[0]
	script.Check(software.Find(&run.Options.Options, one.name, software.Browser))
	of := one.service()
	var seen visited
	outcome := run.Uncounted(setup("chromium", of), func(t *world.Trial) {
		certificate := t.Foreign.Certificate()
		t.Foreign.StartTLS(one.name, of, certificate)
		page := t.Foreign.Visit(certificate, false)
		t.Event("add server s5", func() { t.Pool.AddServer(5); t.Rollout.Apply() })
		t.Event("drain server s1", func() { t.Pool.Drain(1); t.Rollout.Apply() })
		t.Event("kill load balancer lb1", func() { t.Failures.CrashLB(1) })
		t.Event("lb1 returns", func() { t.Failures.ReturnLB(1) })
		seen = readVisits(t, page)
	})
	outcome.Completed = seen.Alone.Connections + seen.Together.Connections // but for the first
	outcome.Attempted, outcome.Broken = outcome.Completed+seen.Failed, seen.Failed
	run.Result.AddTrial(outcome, false)
	for name, of := range map[string]visits{"alone": seen.Alone, "together": seen.Together} {
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
