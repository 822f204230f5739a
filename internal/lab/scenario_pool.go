// Scenarios in which the pool, the load balancers or the processes change under steady traffic.
package lab

import (
	"errors"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

func runIPv6(s *stage) error {
	one, err := s.withAffinity(cookieService(vip6))
	if err != nil {
		return err
	}
	outcome, err := s.trial(setup{
		name: one.Affinity, services: []*service{one}, members: []int{1, 2, 3, 4, 5, 6},
		topology: Topology{LBs: 2, Servers: make([]ServerNode, 8)},
	}, churn)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	return nil
}

// servers makes n equal servers.
func servers(n int, sysctls map[string]string) []ServerNode {
	nodes := make([]ServerNode, n)
	for i := range nodes {
		nodes[i].Sysctls = sysctls
	}
	return nodes
}

func throughService(forward string) *service {
	return &service{Name: "web", VIP: vip4, Ports: []uint16{80}, Forward: forward, Return: "through",
		Dispatch: "rr", Affinity: "cookie", CookieBits: 8}
}

// runReturnThrough: the cookie is the load balancer's work, another one takes over in mid-connection.
func runReturnThrough(s *stage) error {
	for _, forward := range []string{"nat", "l2"} {
		outcome, err := s.trial(setup{
			name: forward, noAgents: true, clocks: true, services: []*service{throughService(forward)}, members: []int{1, 2, 3},
			topology: Topology{LBs: 2, AnswersThrough: true,
				Servers: servers(4, map[string]string{"net.ipv4.tcp_timestamps": "2"})},
		}, throughChanges)
		if err != nil {
			return err
		}
		s.unbroken(outcome)
	}
	outcome, err := s.trial(setup{
		name: "default timestamps", noAgents: true, services: []*service{throughService("nat")},
		topology: Topology{LBs: 2, AnswersThrough: true,
			Servers: servers(3, map[string]string{"net.ipv4.tcp_timestamps": "1"})},
	}, throughTakeOver)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	return nil
}

func throughChanges(t *trial) error {
	running, err := t.steady()
	if err != nil {
		return err
	}
	return t.series(running,
		step{"add server s4", func() error { t.addServer(4); return t.apply() }},
		step{"drain server s1", func() error { t.fleet.Services[0].drain(1); return t.apply() }},
		step{"kill lb1, lb2 takes over", func() error { return t.takeOver(1, 2) }},
		step{"lb1 returns", func() error { return t.returnLB(1) }})
}

// awaitTakingPart waits until every LB has found that the servers' clocks allow cookies. Connections that
// come earlier are served without, by the fallback.
func (t *trial) awaitTakingPart() error {
	for node, running := range t.lbs {
		if running.down {
			continue
		}
		err := await(t.ctx, daemonDeadline, "the servers take part at "+node, func() error {
			var services []api.ServiceStatus
			if err := t.client(node).Get(t.ctx, api.PathServices, &services); err != nil {
				return err
			}
			for _, server := range services[0].Servers {
				if !server.TakesPart {
					return errors.New(server.Name + " does not")
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func throughTakeOver(t *trial) error {
	running, err := t.steady()
	if err != nil {
		return err
	}
	return t.series(running, step{"kill lb1, lb2 takes over", func() error { return t.takeOver(1, 2) }})
}

// takeOver crashes one LB and leads the servers' answers by the other, as their gateway protocol would.
func (t *trial) takeOver(from, to int) error {
	if err := t.crashLB(from); err != nil {
		return err
	}
	return t.answerByLB(to)
}

// runNoTimestamps: clients that cannot carry a cookie keep their servers by second chance.
func runNoTimestamps(s *stage) error {
	what := setup{
		name: "cookie", members: []int{1, 2, 3, 4}, services: []*service{cookieService(vip4)},
		topology: Topology{LBs: 2, Servers: make([]ServerNode, 5),
			ClientSysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}},
	}
	outcome, err := s.trial(what, poolChanges)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	what.name, what.baseline, what.services = "hash", true, []*service{hashService(vip4)}
	baseline, err := s.trial(what, poolChanges)
	if err != nil {
		return err
	}
	s.result.expect(baseline.Broken > 0, "the baseline broke nothing: the events prove nothing")
	return nil
}

func poolChanges(t *trial) error {
	running, err := t.steady()
	if err != nil {
		return err
	}
	return t.series(running,
		step{"add server s5", func() error { t.addServer(5); return t.apply() }},
		step{"drain server s1", func() error { t.fleet.Services[0].drain(1); return t.apply() }},
		step{"kill lb1", func() error { return t.crashLB(1) }},
		step{"lb1 returns", func() error { return t.returnLB(1) }})
}

// runUpgrade: every process is replaced under load, politely and not.
func runUpgrade(s *stage) error {
	outcome, err := s.trial(setup{
		name: "cookie", services: []*service{cookieService(vip4)}, topology: Topology{LBs: 2, Servers: make([]ServerNode, 3)},
	}, func(t *trial) error {
		running, err := t.steady()
		if err != nil {
			return err
		}
		for _, group := range []struct {
			role    string
			daemons map[string]*daemon
		}{{"lb", t.lbs}, {"agent", t.agents}} {
			for i := range len(group.daemons) {
				node := serverName(i + 1)
				if group.role == "lb" {
					node = lbName(i + 1)
				}
				if err := t.replaceDaemon(running, group.role, node, group.daemons); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	return nil
}

// replaceDaemon stops a node's process by SIGTERM and by SIGKILL; each time traffic flows without it,
// then a new process takes over.
func (t *trial) replaceDaemon(running *load, role, node string, daemons map[string]*daemon) error {
	ways := []step{
		{fmt.Sprintf("stop %s of %s", role, node), func() error {
			ctx, cancel := withMachineTime(t.ctx, daemonDeadline)
			defer cancel()
			return daemons[node].stop(ctx)
		}},
		{fmt.Sprintf("kill %s of %s", role, node), func() error { daemons[node].kill(); return nil }},
	}
	for _, way := range ways {
		err := t.series(running, way, step{fmt.Sprintf("start %s of %s", role, node), func() error {
			daemons[node] = nil
			return t.apply()
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// runIdle: connections that say nothing for a long time go on where they were, though the pool changed.
func runIdle(s *stage) error {
	length := s.length(20 * time.Second)
	outcome, err := s.trial(setup{
		name: "cookie", members: []int{1, 2, 3}, services: []*service{cookieService(vip4)},
		topology: Topology{LBs: 2, Servers: make([]ServerNode, 4)},
	}, func(t *trial) error {
		idle, err := t.generate(traffic.Flow{
			Name: "idle", Target: t.target(), Count: 100, Concurrent: 100, PerSecond: 100,
			Requests: []traffic.Request{{Path: pathName}, {Path: pathBlob, Bytes: 100_000, Pause: length},
				{Path: pathUpload + "idle", Bytes: 100_000, Upload: true}},
		})
		if err != nil {
			return err
		}
		err = t.until(idle, 20*time.Second, "all connections are idle", func(p traffic.Progress) bool {
			return p.OpenByServer["s1"]+p.OpenByServer["s2"]+p.OpenByServer["s3"] == 100
		})
		if err != nil {
			return err
		}
		if err := t.change("add server s4", func() { t.addServer(4) }); err != nil {
			return err
		}
		if err := t.change("drain server s1", func() { t.fleet.Services[0].drain(1) }); err != nil {
			return err
		}
		return idle.wait(t.ctx)
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.LongestSecond >= 0.75*length.Seconds(), "the longest connection lasted only %.0f s", outcome.LongestSecond)
	return nil
}

// length is the caller's duration, or the scenario's own.
func (o *Options) length(own time.Duration) time.Duration {
	if o.Duration != 0 {
		return o.Duration
	}
	return own
}
