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

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
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

// Sessions are TLS clients under way.
type Sessions struct {
	process *host.Process
	output  host.Transcript
}

// StartTLS starts clients that begin and resume sessions.
func (c *Clients) StartTLS(groups ...tlsclient.Group) *Sessions {
	s := &Sessions{}
	plan := script.Must(json.Marshal(&tlsclient.Plan{Seed: c.random.Uint64(), Groups: groups}))
	s.process = c.network.lab.StartPeer(process.Sessions, host.Spawn{Node: ClientNode, Stdin: bytes.NewReader(plan), Stdout: &s.output})
	return s
}

// Now is what they have seen so far, by name.
func (s *Sessions) Now() (o map[string]tlsclient.Outcome) {
	lines := strings.Split(s.output.String(), "\n")
	if len(lines) >= 2 {
		script.Check(json.Unmarshal([]byte(lines[len(lines)-2]), &o))
	}
	return o
}

// More waits until each of them has made so many more connections.
func (s *Sessions) More(connections int) {
	before := s.Now()
	await.Until(s.process.Context(), tlsclient.Patient, fmt.Sprintf("%d more connections of TLS sessions of each client", connections), func() error {
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
func (s *Sessions) End() map[string]tlsclient.Outcome {
	s.process.Wanted.Store(true)
	s.process.Interrupt()
	s.process.WaitOrKill(s.process.Context())
	return s.Now()
}

// Wait waits until all have ended by themselves, and returns what they have seen, by name.
func (s *Sessions) Wait() map[string]tlsclient.Outcome {
	s.process.Finish()
	return s.Now()
}
