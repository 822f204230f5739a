// Clients that begin and resume TLS sessions, and connections by hand.
package world

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/session"
	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Clients are those beside the traffic.
type Clients struct {
	network *Network
	fleet   *fleet.Fleet
	random  *rand.Rand
}

// Dial opens a connection to the first service from one of the clients' addresses.
func (c *Clients) Dial(source string) (connection net.Conn) {
	script.Check(c.network.lab.Space(ClientNode).Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: Stall}
		connection, err = dialer.DialContext(c.network.lab.Context, "tcp", c.fleet.Target())
		return err
	}))
	return connection
}

// Sessions are clients under way.
type Sessions struct {
	process *host.Process
	output  host.Transcript
}

// StartSessions starts clients that begin and resume sessions, by the connections of each no longer than given.
func (c *Clients) StartSessions(longest time.Duration, clients ...session.Clients) *Sessions {
	s := &Sessions{}
	plan := script.Must(json.Marshal(&session.Plan{Seed: c.random.Uint64(), Longest: longest, Clients: clients}))
	s.process = c.network.lab.StartPeer(process.Sessions, host.Spawn{Node: ClientNode, Stdin: bytes.NewReader(plan), Stdout: &s.output})
	return s
}

// Now is what they have seen so far, by name.
func (s *Sessions) Now() (o map[string]session.Outcome) {
	lines := strings.Split(s.output.String(), "\n")
	if len(lines) >= 2 {
		script.Check(json.Unmarshal([]byte(lines[len(lines)-2]), &o))
	}
	return o
}

// More waits until each of them has made so many more connections.
func (s *Sessions) More(connections int) {
	before := s.Now()
	await.Until(s.process.Context(), session.Patient, fmt.Sprintf("%d more connections of TLS sessions of each client", connections), func() error {
		if err := s.process.Died(); err != nil {
			return await.Stop(err)
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
	s.process.Wanted.Store(true)
	s.process.Interrupt()
	s.process.WaitOrKill(s.process.Context())
	return s.Now()
}

// SendHellos has clients make connections by a plan, and returns what each has seen, by name.
func (c *Clients) SendHellos(plan session.HelloPlan) (seen map[string]session.HelloOutcome) {
	plan.Target = c.fleet.Target()
	c.run(process.Hellos, &plan, &seen)
	return seen
}

// Measured has clients make requests by a plan, and returns what they have seen.
func (c *Clients) Measured(plan stateful.Plan) (seen stateful.Outcome) {
	plan.Seed = c.random.Uint64()
	c.run(process.Measure, &plan, &seen)
	return seen
}

// run runs a process of clients, which reads its plan and reports what it has seen.
func (c *Clients) run(name string, plan, seen any) {
	var output host.Transcript
	p := c.network.lab.StartPeer(name, host.Spawn{Node: ClientNode, Stdin: bytes.NewReader(script.Must(json.Marshal(plan))), Stdout: &output})
	p.Wanted.Store(true)
	select {
	case <-p.Exited:
	case <-c.network.lab.Context.Done():
		script.Check(c.network.lab.Context.Err())
	}
	if p.Err != nil {
		script.Check(fmt.Errorf("%s: %w: %s", p, p.Err, p.LastWords()))
	}
	script.Check(json.Unmarshal([]byte(output.String()), seen))
}
