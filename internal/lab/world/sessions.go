// TLS servers whose session tickets name them, and clients that resume their sessions.
package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/script"
)

// StartTLS starts a TLS server for the trial's service on every server. It makes session tickets by the file of the server's agent, and waits for that where
// there is none yet.
func (t *Trial) StartTLS() {
	t.startTLS(func(node string) string {
		return filepath.Join(t.NodeDir(node), "run", "tickets", instance, t.Fleet.Services[0].Name+".json")
	})
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

// StartSessions starts clients that begin and resume so many sessions at once.
func (t *Trial) StartSessions(sessions int, longest time.Duration) *Sessions {
	s := &Sessions{trial: t}
	plan := script.Must(json.Marshal(&session.Clients{Target: t.Target(), Sessions: sessions, Seed: t.Random.Uint64(), Longest: longest}))
	s.p = script.Must(t.Start(Spawn{Node: ClientNode, Program: t.Processes, Arguments: []string{process.Sessions}, stdin: strings.NewReader(string(plan)), Stdout: &s.said}))
	return s
}

// Now is what they have seen so far.
func (s *Sessions) Now() (o session.Outcome) {
	lines := strings.Split(s.said.String(), "\n")
	if len(lines) >= 2 {
		script.Check(json.Unmarshal([]byte(lines[len(lines)-2]), &o))
	}
	return o
}

// More waits until there were so many more connections.
func (s *Sessions) More(connections int) {
	before := s.Now().Connections
	Await(s.trial.Context, Stall, fmt.Sprintf("%d more connections of TLS sessions", connections), func() error {
		if err := s.p.Died(); err != nil {
			return StopWaiting(err)
		}
		if now := s.Now().Connections; now < before+connections {
			return fmt.Errorf("%d until now", now-before)
		}
		return nil
	})
}

// End ends them, and returns what they have seen.
func (s *Sessions) End() session.Outcome {
	s.p.wanted.Store(true)
	s.p.interrupt()
	s.p.waitOrKill(s.trial.Context)
	return s.Now()
}
