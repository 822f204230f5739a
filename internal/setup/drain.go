// What lives of a node that is to leave, and the wait until nothing does.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// counted is what the daemon of this machine counts.
type counted struct {
	role      pki.Role
	known     bool     // else nobody answers, though the daemon may run
	ended     bool     // the daemon has
	living    uint64   // agent: connections that carry cookies
	services  []string // agent: whose connections carry them; nil: the daemon has ended, and nobody counts any other
	forwarded uint64   // load balancer: packets until now
	failed    error    // the daemon has ended, and what it has left cannot be read
}

func (c counted) String() string {
	switch {
	case !c.known:
		return ""
	case c.role == pki.Agent:
		return model.Counted(c.living, "connection with a cookie lives", "connections with cookies live") + ", as the agent counts"
	}
	return fmt.Sprintf("%d packets were forwarded", c.forwarded)
}

// count asks the daemon, or looks at what one that has ended has left.
func (l *Leave) count(ctx context.Context, n *Node) (c counted) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	c.role = n.Role
	client := api.NewClient(api.SocketPath(n.RunDir, n.Instance))
	if n.Role == pki.Agent {
		status := &api.AgentStatus{}
		if err := client.Get(ctx, api.PathStatus, status); hasEnded(err) {
			c.living, c.known, c.failed = l.Left(n)
			c.ended = true
			return c
		} else if err != nil {
			return c
		}
		c.known = true
		c.services = append([]string{}, status.Services...)
		for _, living := range status.Echoes {
			c.living += living
		}
		return c
	}
	counters := &api.Counters{}
	err := client.Get(ctx, api.PathCounters, counters)
	if hasEnded(err) {
		c.forwarded, c.known, c.failed = l.Left(n)
		c.ended = true
		return c
	}
	c.known = err == nil
	for name, packets := range counters.Counters {
		if strings.HasPrefix(name, "forwarded_") {
			c.forwarded += packets
		}
	}
	return c
}

// hasEnded reports whether nobody serves a daemon's socket: one that is busy, or asked for too short a time, has not ended.
func hasEnded(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// answers reports whether the daemon of a node runs.
func answers(ctx context.Context, n *Node) bool {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	return !hasEnded(api.NewClient(api.SocketPath(n.RunDir, n.Instance)).Get(ctx, api.PathStatus, &api.Status{}))
}

// lives says what controllers know to live of a node.
func (n *Node) lives() (lines []string) {
	if n.client == nil {
		return nil
	}
	for _, s := range n.fleet.GetServers() {
		remain := "it is not known how many connections live"
		if connections := s.Connections; connections != nil || s.ConnectionsExact { // 0 is left out
			remain = model.Counted(s.GetConnections(), "connection lives", "connections live")
			if !s.ConnectionsExact {
				remain = "about " + remain
			}
		}
		lines = append(lines, fmt.Sprintf("server %s of %s (%s): %s", s.Server.Name, s.Service, s.Server.State, remain))
	}
	if lost := n.fleet.GetLost(); len(lost) > 0 {
		lines = append(lines, strings.Join(lost, ", ")+" may not know it: connect them again, or `ballast ctl node forget NAME`")
	}
	if n.fleet.GetOnRing() {
		lines = append(lines, "other load balancers have not all connections yet that it keeps for them")
	}
	if n.fleet != nil && n.Role == pki.LB && n.fleet.Node == nil {
		lines = append(lines, "the configuration does not name it: withdraw its routes at the router")
	}
	return lines
}

// quiet reports whether nothing lives, as far as controllers know. What they do not know the agent here may count.
func (n *Node) quiet(here *counted) bool {
	if n.client == nil { // they do not tell any more
		return true
	}
	for _, s := range n.fleet.GetServers() {
		unknown := s.Connections == nil && !s.ConnectionsExact && s.Server.State != "off" && !here.ended && !slices.Contains(here.services, s.Service)
		if s.GetConnections() > 0 || unknown {
			return false
		}
	}
	return len(n.fleet.GetLost()) == 0 && !n.fleet.GetOnRing()
}

// drain has nothing new come to a node, and waits until nothing lives.
func (l *Leave) drain(ctx context.Context, n *Node) error {
	request := &ballastv1.LeavingDrainRequest{Force: l.Force}
	if n.client != nil {
		asked, cancel := context.WithTimeout(ctx, askTime)
		answer, err := n.client.Drain(asked, request)
		cancel()
		if warnings := api.WarningsOf(err); len(warnings) > 0 {
			if err := l.Confirm(warnings); err != nil {
				return err
			}
			request.Force = true
			asked, cancel := context.WithTimeout(ctx, askTime)
			answer, err = n.client.Drain(asked, request)
			cancel()
		}
		if err == nil {
			n.learn(answer)
		} else {
			l.say("%s is not drained: %v", n.what(), err)
			n.client, n.unasked = nil, err
		}
		for _, line := range answer.GetChanges() {
			l.say("%s", line)
		}
	}
	if l.Force {
		return nil
	}
	return l.settle(ctx, n, request)
}

// errLives ends a wait.
var errLives = errors.New("nothing was removed: run this again to go on waiting, with --force to break what lives, or undo the drain by `ballast ctl server undrain` or `node undrain`")

func (l *Leave) settle(ctx context.Context, n *Node, request *ballastv1.LeavingDrainRequest) error {
	waiting, cancel := context.WithTimeout(ctx, l.Deadline)
	defer cancel()
	said, saidAt, before, steady := "", time.Time{}, counted{}, 0
	for look := time.NewTicker(askEvery); ; {
		now := l.count(ctx, n)
		if now.failed != nil && (n.Role == pki.LB || n.client == nil) { // what servers have, controllers know, too
			look.Stop()
			return fmt.Errorf("nobody knows whether anything lives: %w: start %s, or say --force", now.failed, n.unit())
		}
		lines := n.lives()
		moving := now.living > 0 || n.Role == pki.LB && now.known && (!before.known || now.forwarded != before.forwarded)
		if text := now.String(); text != "" && (now.living > 0 || n.Role == pki.LB && before.known && moving) {
			lines = append(lines, text)
		}
		if !now.known && !now.ended {
			lines = append(lines, "its daemon does not answer")
		}
		if steady++; moving || !now.known && !now.ended || !n.quiet(&now) {
			steady = 0
		}
		before = now
		if steady >= askSteady {
			look.Stop()
			return nil
		}
		if text := strings.Join(lines, "; "); text != said && steady == 0 && time.Since(saidAt) >= sayEvery {
			said, saidAt = text, time.Now()
			l.say("%s: %s", n.what(), text)
		}
		select {
		case <-look.C:
		case <-waiting.Done():
			look.Stop()
			return fmt.Errorf("%s: %w", said, errLives)
		}
		if n.client == nil {
			continue
		}
		answer, err := n.client.Drain(waiting, request)
		switch {
		case err == nil:
			n.learn(answer)
		case waiting.Err() == nil && connect.CodeOf(err) != connect.CodeUnavailable: // another controller, or the same a little later, will know
			return fmt.Errorf("drain it: %w", err)
		}
	}
}
