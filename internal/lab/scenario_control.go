// controller-loss: controllers, etcd members and the way to them are lost while the fleet changes under load.
package lab

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
)

// Implementation constants.
const (
	partitionShort = 5 * time.Second  // without the controllers; the long form takes a duration
	resumeMax      = 10 * time.Second // until weights and health follow again, at most
	takeOverMax    = 3 * time.Second  // from the death of a controller until another weighs its services
)

// controlService follows load ten times a second and has its servers' health checked five times a second.
func controlService() *service {
	one := policyService(vip4, "awrr")
	one.Health = &serviceHealth{Check: "http", Path: pathHealth, Interval: "200ms", Timeout: "200ms", Rise: 2, Fall: 2}
	return one
}

func runControllerLoss(s *stage) error {
	cut := s.length(partitionShort)
	outcome, err := s.trial(setup{
		name: "controllers", services: []*service{controlService()}, members: []int{1, 2, 3, 4, 5},
		topology: Topology{LBs: 2, Servers: make([]ServerNode, 8), Management: true, Controllers: 3, EtcdMembers: 3},
	}, func(t *trial) error { return t.loseControl(s.result, cut) })
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	return nil
}

// loseControl is the series of events.
func (t *trial) loseControl(result *Result, cut time.Duration) error {
	running, err := t.generate(restless(t.target(), 30), downloads(t.target(), 20), browsers(t.target(), 20), shorts(t.target(), 40))
	if err != nil {
		return err
	}
	if err := t.busy(running, 100); err != nil {
		return err
	}
	if err := t.awaitWeights(resumeMax, lbName(1), lbName(2)); err != nil {
		return err
	}
	if err := t.awaitLimits(); err != nil {
		return err
	}
	return t.series(running,
		step{"server s1 becomes unhealthy", func() error { return t.sicken(1, true, lbName(1), lbName(2)) }},
		step{"server s1 recovers", func() error { return t.sicken(1, false, lbName(1), lbName(2)) }},
		step{"kill controller c1, add server s6", func() error { return t.replaceController(result, 1, func() { t.addServer(6) }) }},
		step{"kill controller c2, drain server s1", func() error { return t.replaceController(result, 2, func() { t.drain(1) }) }},
		step{"kill controller c3, remove server s1", func() error { return t.replaceController(result, 3, func() { t.removeServer(1) }) }},
		step{"kill etcd member e1, add server s7", func() error {
			t.members[memberName(1)].kill()
			t.addServer(7)
			return errors.Join(t.apply(), t.startMember(memberName(1)))
		}},
		step{fmt.Sprintf("lb2 is without controllers for %v, servers s2 to s4 and s8 change", cut), func() error { return t.changeWithout(result, 2, cut) }},
		step{"kill all controllers", func() error {
			for _, controller := range t.controllers {
				controller.kill()
			}
			return nil
		}},
		step{"kill and restart lb1's daemon without any controller", func() error { return t.restartAlone(1) }},
		step{"the controllers return, remove server s3", func() error { return t.returnControl(result) }},
		step{"server s5 becomes unhealthy", func() error { return t.sicken(5, true, lbName(1), lbName(2)) }},
		step{"server s5 recovers", func() error { return t.sicken(5, false, lbName(1), lbName(2)) }},
		step{"the fleet is what it should be everywhere", func() error {
			return errors.Join(t.differs(lbName(1)), t.differs(lbName(2)))
		}},
		step{"no agent has dropped a load balancer's tunnel", func() error { return t.expectNoStrangers(result) }})
}

// awaitLimits waits until agents drop tunnels of others than the load balancers that controllers tell.
func (t *trial) awaitLimits() error {
	for node := range t.agents {
		err := await(t.ctx, daemonDeadline, node+" takes tunnels of both load balancers alone", func() error {
			status, err := t.agentStatus(node)
			if err == nil && !status.Tunnels.Limited {
				err = errors.New(status.Tunnels.Open)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// expectNoStrangers sees that agents go on dropping strangers' tunnels, and have dropped none.
func (t *trial) expectNoStrangers(result *Result) error {
	for node := range t.agents {
		status, err := t.agentStatus(node)
		if err != nil {
			return err
		}
		result.expect(status.Tunnels.Limited, "%s takes tunnels of anybody: %s", node, status.Tunnels.Open)
		counters, err := t.client(node).Counters(t.ctx)
		if err != nil {
			return err
		}
		dropped := counters["dropped_foreign_source"]
		result.expect(dropped == 0, "%s has dropped %d packets in tunnels, the last from %s", node, dropped, status.Tunnels.Last)
	}
	return nil
}

func (t *trial) agentStatus(node string) (status api.AgentStatus, err error) {
	err = t.client(node).Get(t.ctx, api.PathStatus, &status)
	return status, err
}

// replaceController kills a controller, changes the fleet by the others, and starts it again. It measures how long weights stood
// still at the load balancers.
func (t *trial) replaceController(result *Result, i int, edit func()) error {
	node := controllerName(i)
	t.controllers[node].kill()
	took, err := t.longestStandstill(lbName(1))
	if err != nil {
		return err
	}
	t.Progress("%s: weights stood still for %v after the death of %s", t.setup.name, took.Round(time.Millisecond), node)
	result.measure("take_over_seconds_max", max(result.Measurements["take_over_seconds_max"], round(took)))
	result.expect(took <= takeOverMax, "weights stood still for %v after the death of %s", took, node)
	edit()
	if err := t.apply(); err != nil {
		return err
	}
	if err := t.startController(node); err != nil {
		return err
	}
	return t.awaitController(node)
}

// changeWithout cuts a load balancer off the controllers, changes the fleet, and sees what it knows when that is over.
func (t *trial) changeWithout(result *Result, i int, cut time.Duration) error {
	node := lbName(i)
	if err := t.partition(node, true); err != nil {
		return err
	}
	t.lbs[node].cut = true
	begin := time.Now()
	t.addServer(8)
	t.removeServer(2)
	t.drain(3)
	if err := t.apply(); err != nil {
		return err
	}
	if err := t.sicken(4, true, lbName(1)); err != nil {
		return err
	}
	if err := t.atTime(begin.Add(cut), "the way to the controllers is back", func() error {
		result.expect(t.differs(node) != nil, "%s knew of changes while it was cut off", node)
		t.lbs[node].cut = false
		return t.partition(node, false)
	}); err != nil {
		return err
	}
	return t.resumes(result, "partition", func() error {
		return errors.Join(t.awaitFleet(node), t.awaitHealth(4, true, node), t.awaitWeights(resumeMax, node), t.sicken(4, false, lbName(1), node))
	})
}

// restartAlone kills a load balancer's daemon and starts it again while there is no controller: it goes on with its last state.
func (t *trial) restartAlone(i int) error {
	node := lbName(i)
	t.lbs[node].kill()
	var err error
	if t.lbs[node], err = t.startDaemon("lb", node); err != nil {
		return err
	}
	return t.awaitFleet(node)
}

// returnControl starts the controllers that were killed.
func (t *trial) returnControl(result *Result) error {
	for node := range maps.Clone(t.controllers) {
		if err := t.startController(node); err != nil {
			return err
		}
	}
	return t.resumes(result, "all_controllers", func() error {
		for node := range t.controllers {
			if err := t.awaitController(node); err != nil {
				return err
			}
		}
		t.removeServer(3)
		return errors.Join(t.apply(), t.awaitWeights(resumeMax, lbName(1), lbName(2)))
	})
}

// resumes measures how long it takes until all is as it should be.
func (t *trial) resumes(result *Result, what string, wait func() error) error {
	begin := time.Now()
	if err := wait(); err != nil {
		return err
	}
	took := machine().since(begin)
	result.measure("resume_seconds_after_"+what, round(took))
	result.expect(took <= resumeMax, "it took %v until weights and health followed after %s", took, what)
	return nil
}

// sicken makes the health checks of a server fail, or succeed again, and waits until load balancers were told.
func (t *trial) sicken(i int, sick bool, lbs ...string) error {
	path := filepath.Join(t.nodeDir(serverName(i)), pathHealth)
	if sick {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("make server %d unhealthy: %w", i, err)
		}
	} else if err := os.WriteFile(path, []byte("healthy\n"), 0o644); err != nil {
		return fmt.Errorf("make server %d healthy: %w", i, err)
	}
	return t.awaitHealth(i, sick, lbs...)
}

// awaitHealth waits until load balancers were told that a server is unhealthy, or that it is not.
func (t *trial) awaitHealth(i int, sick bool, lbs ...string) error {
	for _, lb := range lbs {
		err := awaitPromised(t.ctx, resumeMax, fmt.Sprintf("%s was told that server %d is unhealthy: %t", lb, i, sick), func() error {
			servers, err := t.servers(lb)
			if err != nil {
				return err
			}
			for _, server := range servers {
				if server.Server.Name == serverName(i) && (server.Health == "unhealthy") != sick {
					return fmt.Errorf("for it the server is %s", server.Health)
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
