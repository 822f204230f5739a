// The child process with the peers, and what it is asked: one JSON value a line each way.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// fleetOfPeers is the first line that the child reads.
type fleetOfPeers struct {
	Controller    string        `json:"controller"`
	Directory     string        `json:"directory"` // of certificates
	LoadBalancers int           `json:"load_balancers"`
	Agents        int           `json:"agents"`
	Interval      time.Duration `json:"interval"` // of reports
	Events        int           `json:"events"`
	Services      int           `json:"services"`
	ServersEach   int           `json:"servers_each"`
	Maps          bool          `json:"maps"`
}

// What the child is asked for.
const (
	askPlan   = "plan"   // plan and write many services, without any controller
	askJoin   = "join"   // all peers join; answered when each has
	askReport = "report" // agents and load balancers begin to report
	askCount  = "count"
	askExpect = "expect" // a server or a number of services
	askSeen   = "seen"   // answered when what is expected has come everywhere
)

type request struct {
	Do       string `json:"do"`
	ID       uint32 `json:"id,omitempty"`
	Services int    `json:"services,omitempty"`
}

type answer struct {
	Error                     string
	At                        time.Time
	CPU                       time.Duration
	Counts                    counts
	Reweigh                   []float64 // microseconds
	Plan, Write               time.Duration
	Applied, Written, Weighed time.Time // by the last, or the only one
}

// counts are of all peers together.
type counts struct {
	Reports, Updates, Weights, Lost int64
	LBs, Agents                     traffic
}

// traffic is what went through connections, below TLS.
type traffic struct{ Read, Written int64 }

func (c *counts) less(before *counts) counts {
	return counts{c.Reports - before.Reports, c.Updates - before.Updates, c.Weights - before.Weights, c.Lost - before.Lost,
		traffic{c.LBs.Read - before.LBs.Read, c.LBs.Written - before.LBs.Written},
		traffic{c.Agents.Read - before.Agents.Read, c.Agents.Written - before.Agents.Written}}
}

// peers is the child process.
type peers struct {
	command *exec.Cmd
	in      io.WriteCloser
	write   *json.Encoder
	answers chan answer
}

func startPeers(ctx context.Context, o *Options, dir, address string) (*peers, error) {
	command := exec.CommandContext(ctx, o.Peers[0], o.Peers[1:]...)
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the peers: %w", err)
	}
	p := &peers{command: command, in: in, write: json.NewEncoder(in), answers: make(chan answer)}
	go func() {
		defer close(p.answers)
		for decoder := json.NewDecoder(out); ; {
			var a answer
			if decoder.Decode(&a) != nil {
				return
			}
			p.answers <- a
		}
	}()
	return p, p.write.Encode(fleetOfPeers{address, dir, o.LoadBalancers, o.Servers, intervalOf(o.Rate), o.Events, o.Services, o.ServersEach, o.Maps})
}

func (p *peers) ask(ctx context.Context, r request) (answer, error) {
	if err := p.write.Encode(r); err != nil {
		return answer{}, fmt.Errorf("ask the peers to %s: %w", r.Do, err)
	}
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return a, fmt.Errorf("ask the peers to %s: their process has ended: see its messages above", r.Do)
		case a.Error != "":
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-time.After(patience + patience/2): // it has its own patience, and says what is missing
		return answer{}, fmt.Errorf("ask the peers to %s: no answer", r.Do)
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// stop ends the child: it ends with its input.
func (p *peers) stop() {
	p.in.Close()
	for range p.answers {
	}
	p.command.Wait() // it has been of use, or its failure has been told
}
