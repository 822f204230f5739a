// The controllers of a load balancer that runs by them: its desired state is theirs, and it reports what it sees.
package lb

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/daemon/lb/replication"
	"github.com/ballast-lb/ballast/internal/daemon/lb/traffic"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// remote is a load balancer's side of its controllers.
type remote struct{ *changes }

// newClient returns streams to controllers that begin when the load balancer runs.
func (r remote) newClient() *nodeclient.Client {
	return nodeclient.NewClient(nodeclient.Options{
		Controllers: r.options.Controllers, Credentials: r.credentials, Log: r.log,
		Hello: func() *ballastv1.Hello {
			return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(pki.LB), Name: r.name, Version: r.options.Version, Addresses: r.sources()}
		},
		OnState:       r.onState,
		OnWeights:     r.reweigh,
		OnOpen:        r.count,
		OnLoads:       r.load,
		OnChecks:      r.onChecks,
		OnRevocations: r.revocations.Take,
		OnReplicas:    func(controller string, view *ballastv1.ReplicaView) { r.replication.OnView(controller, view) },
		OnQuestion:    r.onQuestion,
		OnLeft:        r.onLeft,
	})
}

// onQuestion answers the controller that asks, and no other.
func (r remote) onQuestion(controller string, q *ballastv1.Question) {
	give := func(answer *ballastv1.Explained) {
		r.controllers.Answer(controller, &ballastv1.FromNode{Message: &ballastv1.FromNode_Explained{Explained: answer}})
	}
	if !q.Sample {
		r.explainer.Ask(q, give)
		return
	}
	r.tracer.Ask(func(sample *ballastv1.Sample, err error) {
		answer := &ballastv1.Explained{Number: q.Number, Sample: sample}
		if err != nil {
			answer.Explanation = &ballastv1.Explanation{Error: err.Error()}
		}
		give(answer)
	})
}

// onState takes what a controller sends of the desired state, unless another one has sent newer.
func (r remote) onState(controller string, message *ballastv1.State) {
	err := r.controllers.Follow(controller, message, func() error {
		return r.change(func(c changing) error { return c.applyState(controller, message) })
	})
	if errors.Is(err, nodeclient.ErrKnowsNothing) {
		r.log.Error("controller knows no service: its store is new or was emptied, the last state goes on", "controller", controller, "revision", message.Revision)
	}
}

func (c changing) applyState(controller string, message *ballastv1.State) error {
	first := !c.tables.Now().Followed
	if first && nodeclient.KnowsNothing(message) {
		return nodeclient.ErrKnowsNothing
	}
	before, revision := c.state, c.revision
	next, err := nodeclient.State{Desired: before.Desired, Unhealthy: c.standIn.unhealthy}.After(message)
	if err == nil && revision == 0 {
		err = c.keeps(&next.Running)
	}
	if err == nil {
		c.revision = message.Revision
		err = c.reconcile(&desired.State{Desired: next.Desired, Unhealthy: c.counting(next.Unhealthy, &next.Running), Self: before.Self})
	}
	if err != nil {
		c.revision = revision
		c.note(func(o *outcome) {
			o.config.Refuse(fmt.Sprintf("state %d of controller %s: %s", message.Revision, controller, err), time.Now())
		})
		return err
	}
	c.standIn.unhealthy, c.standIn.current = next.Unhealthy, true
	c.note(func(o *outcome) { o.config = api.Config{Path: "controller " + controller} })
	c.logChanges("controller "+controller, fleet.Diff(before.Running, next.Running))
	c.controllers.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: message.Revision}}})
	if first {
		c.attachLate()
		c.sweeper.Recover()
	}
	return nil
}

// newReplication returns what this load balancer has to do with the others of the fleet. saved is of an earlier process, nil: there is none.
func (r remote) newReplication(saved *savedState) (*replication.Replication, error) {
	var before *replication.State
	if saved != nil {
		before = saved.Replication
	}
	return replication.New(replication.Options{Name: r.name, Address: r.peerAddress, Tables: r.tables, Credentials: r.credentials, Send: r.controllers.Send,
		Save: r.saveState, Log: r.log}, before)
}

// keeps refuses the first state of controllers if it has not the keys and ids of connections that came by a file: it may be of another fleet.
func (c changing) keeps(next *model.Fleet) error {
	if err := c.state.Keeps(next); err != nil {
		return fmt.Errorf("%w; give controllers the keys and ids that this node runs by (`ballast ctl apply` of its file); if its connections may break: stop the "+
			"load balancer, `ballast lb --detach --instance %s`, remove %s, and start it again", err, c.options.Instance, c.kept.Path)
	}
	return nil
}

// onChecks replaces what a controller wants checked.
func (r remote) onChecks(controller string, services []string) {
	r.checks.Want(controller, services)
	r.checks.Forget(r.controllers.Connected()) // what those wanted that have left meanwhile
	r.checks.Follow(r.tables)
	r.checks.Repeat() // what was found before it asked
}

// reportHealth tells controllers what checks found.
func (r remote) reportHealth(servers []engine.ServerHealth) {
	report := &ballastv1.HealthReport{Servers: make([]*ballastv1.ServerHealth, len(servers))}
	for i, s := range servers {
		report.Servers[i] = &ballastv1.ServerHealth{Service: s.Service, Id: uint32(s.ID), Healthy: s.Healthy, Detail: s.Detail, Direct: s.Direct, Unanswered: s.Unanswered}
		if !s.Succeeded.IsZero() {
			report.Servers[i].Age = uint32(max(time.Since(s.Succeeded).Milliseconds(), 1))
		}
	}
	r.controllers.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: report}})
	if local := r.alone.Load(); local != nil {
		local.Health(servers)
	}
}

// reportTraffic tells controllers what this node saw of servers.
func (r remote) reportTraffic(seen []traffic.Server) {
	report := &ballastv1.TrafficReport{Servers: make([]*ballastv1.ServerTraffic, len(seen))}
	for i, s := range seen {
		report.Servers[i] = &ballastv1.ServerTraffic{Service: s.Service, Id: uint32(s.ID), Connections: s.Connections, Closed: s.Closed,
			Packets: s.Packets, Bytes: s.Bytes, Open: s.Estimate, SlowStartTenths: uint32(s.Start.Tenths)}
		if s.Start.Tenths > 0 {
			report.Servers[i].SlowStartLeft = durationpb.New(time.Until(s.Start.Whole))
		}
	}
	r.controllers.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: report}})
}
