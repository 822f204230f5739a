// TLS servers whose session tickets name them, and clients that resume their sessions.
package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// StartTLS starts a TLS server for the trial's service on every server. It makes session tickets by the file of the server's agent, and waits for that where
// there is none yet.
func (t *Trial) StartTLS() {
	t.startTLS(func(node string) string { return t.ticketFile(node, t.Fleet.Services[0].Name) })
}

// StartTLSWithoutTickets starts servers whose session tickets name nobody.
func (t *Trial) StartTLSWithoutTickets() { t.startTLS(func(string) string { return "" }) }

// startTLS starts servers by the files that are named.
func (t *Trial) startTLS(tickets func(node string) string) {
	one := t.Fleet.Services[0]
	for i := range t.Topology.Servers {
		node := ServerName(i + 1)
		p := t.startPeer(process.TLS, Spawn{Node: node}, &session.Server{Address: one.Target(), Name: node, Tickets: tickets(node)})
		if t.Agents[node] != nil {
			Await(t.Context, DaemonDeadline, node+" serves TLS", func() error {
				if err := p.Died(); err != nil {
					return StopWaiting(err)
				}
				return t.Space(node).Do(func() error {
					conn, err := net.DialTimeout("tcp", one.Target(), time.Second)
					return errors.Join(err, closed(conn))
				})
			})
		}
	}
}

func closed(conn net.Conn) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// Sessions are clients under way.
type Sessions struct {
	trial *Trial
	p     *Process
	said  transcript
}

// StartSessions starts clients that begin and resume sessions, by the connections of each no longer than given.
func (t *Trial) StartSessions(longest time.Duration, clients ...session.Clients) *Sessions {
	s := &Sessions{trial: t}
	plan := script.Must(json.Marshal(&session.Plan{Seed: t.Random.Uint64(), Longest: longest, Clients: clients}))
	s.p = script.Must(t.Start(Spawn{Node: ClientNode, Program: t.Processes, Arguments: []string{process.Peer, process.Sessions}, stdin: strings.NewReader(string(plan)), Stdout: &s.said}))
	return s
}

// Now is what they have seen so far, by name.
func (s *Sessions) Now() (o map[string]session.Outcome) {
	lines := strings.Split(s.said.String(), "\n")
	if len(lines) >= 2 {
		script.Check(json.Unmarshal([]byte(lines[len(lines)-2]), &o))
	}
	return o
}

// More waits until each of them has made so many more connections.
func (s *Sessions) More(connections int) {
	before := s.Now()
	Await(s.trial.Context, session.Patient, fmt.Sprintf("%d more connections of TLS sessions of each client", connections), func() error {
		if err := s.p.Died(); err != nil {
			return StopWaiting(err)
		}
		now := s.Now()
		if len(now) == 0 {
			return errors.New("they have not begun")
		}
		for name, of := range now {
			if made := of.Connections - before[name].Connections; made < connections {
				return fmt.Errorf("%s: %d until now, %v", name, made, of.Broken)
			}
		}
		return nil
	})
}

// End ends them, and returns what they have seen, by name.
func (s *Sessions) End() map[string]session.Outcome {
	s.p.wanted.Store(true)
	s.p.interrupt()
	s.p.waitOrKill(s.trial.Context)
	return s.Now()
}

// SendHellos has clients make connections by a plan, and returns what each has seen, by name.
func (t *Trial) SendHellos(plan session.HelloPlan) (seen map[string]session.HelloOutcome) {
	plan.Target = t.Target()
	t.ask(process.Hellos, &plan, &seen)
	return seen
}

// EndClientLink ends what is between clients and router, and returns what hellos it has seen, by source.
func (t *Trial) EndClientLink() (seen map[netip.Addr]slowlink.Seen) {
	t.slow.Stop(t.Context)
	script.Check(json.Unmarshal([]byte(t.hellos.String()), &seen))
	return seen
}
