package sessions

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/script"
)

const (
	goAtOnce       = 4
	programsAtOnce = 1
	betweenEach    = 10 // connections of each client, between two events
)

// checks are slow to tell that a server is unhealthy: its sessions would move. Dovecot starts a process for each.
var checks = model.Health{Check: model.CheckTLS, Interval: model.Duration(2 * time.Second), Timeout: model.Duration(10 * time.Second), Rise: 1, Fall: 3}

// others are the programs that are servers, each of a service of its own, and the clients of each.
var others = []struct {
	program, vip4, vip6 string
	port                uint16
	speech              string
	clients             []string
}{
	{"nginx", "198.51.100.10", "2001:db8:100::10", 443, "http", []string{"", "curl", "openssl", "python3"}},
	{"apache2", "198.51.100.11", "2001:db8:100::11", 443, "http", []string{"", "curl", "openssl", "python3"}},
	{"haproxy", "198.51.100.12", "2001:db8:100::12", 443, "http", []string{"", "curl", "openssl", "python3"}},
	{"dovecot", "198.51.100.13", "2001:db8:100::13", 993, "imap", []string{"", "openssl", "python3"}},
}

// runSoftware has one series of events for all servers and clients.
func runSoftware(run *scenario.Run) {
	var programs []string
	for _, one := range others {
		programs = append(programs, one.program)
	}
	script.Check(run.FindSoftware(append(programs, "curl", "openssl", "python3")...))
	var services []*fleet.Service
	var clients []session.Clients
	for _, one := range others {
		of := service(one.vip4, func(s *fleet.Service) {
			s.Name, s.Ports, s.Health = one.program, []uint16{one.port}, world.Checks(model.CheckTLS)
		})
		services = append(services, of)
		for _, program := range one.clients {
			name, atOnce := one.program+"_go", goAtOnce
			if program != "" {
				name, atOnce = one.program+"_"+program, programsAtOnce
			}
			clients = append(clients, session.Clients{Name: name, Target: of.Target(), Speech: one.speech, Program: program, Sessions: atOnce})
		}
	}
	seen := map[string]session.Outcome{}
	with := setup("software", services...)
	with.Tickets = true
	outcome := run.Uncounted(with, func(t *world.Trial) {
		certificate := t.Certificate()
		for i, one := range others {
			t.StartSoftware(one.program, services[i], certificate)
		}
		seen = changes(t, betweenEach, clients...)
	})
	judge(run, outcome, seen)
	elsewhere := 0
	for _, of := range seen {
		elsewhere += of.Elsewhere
	}
	run.Result.Measure("resumed_elsewhere", float64(elsewhere))
	run.Result.Expect(elsewhere > 0, "no session of the server that was removed was resumed at another")
}
