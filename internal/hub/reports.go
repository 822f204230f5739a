// What nodes report, and what is known of servers, to and from the form of the streams.
package hub

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

// idMax bounds the ids of servers: reports of others are of nobody.
const idMax = 1<<16 - 1

func trafficFromProto(report *ballastv1.TrafficReport) []engine.ServerTraffic {
	servers := make([]engine.ServerTraffic, 0, len(report.Servers))
	for _, s := range report.Servers {
		if s.Id <= idMax {
			servers = append(servers, engine.ServerTraffic{Service: s.Service, ID: uint16(s.Id), Start: engine.StartOf(time.Now(), s.SlowStartTenths, s.SlowStartLeft.AsDuration()),
				Seen: balance.Seen{Connections: s.Connections, Closed: s.Closed, Packets: s.Packets, Bytes: s.Bytes, Estimate: s.Open}})
		}
	}
	return servers
}

func healthFromProto(report *ballastv1.HealthReport) []engine.ServerHealth {
	servers, now := make([]engine.ServerHealth, 0, len(report.Servers)), time.Now()
	for _, s := range report.Servers {
		if s.Id > idMax {
			continue
		}
		view := health.View{Healthy: s.Healthy, Direct: s.Direct, Unanswered: s.Unanswered && !s.Direct && !s.Healthy, Detail: legible(s.Detail)}
		if s.Age > 0 {
			view.Succeeded = now.Add(-time.Duration(s.Age) * time.Millisecond)
		}
		servers = append(servers, engine.ServerHealth{Service: s.Service, ID: uint16(s.Id), View: view})
	}
	return servers
}

// lossesFromProto returns why packets are lost, by service.
func lossesFromProto(condition *ballastv1.Condition) map[string]health.Loss {
	losses := make(map[string]health.Loss, len(condition.Losses))
	for _, loss := range condition.Losses {
		losses[loss.Service] = health.Loss{Reason: cmp.Or(legible(loss.Reason), "it does not say why"), Unseen: loss.Unseen}
	}
	return losses
}

func loadFromProto(report *ballastv1.LoadReport) *engine.Load {
	load := &engine.Load{Queues: make(map[string]engine.Queue, len(report.Services))}
	if report.CpuPermille != nil {
		load.HasCPU, load.CPUPermille, load.CPUs = true, uint16(min(*report.CpuPermille, 1000)), float64(report.Cpus)
	}
	for _, s := range report.Services {
		load.Queues[s.Service] = engine.Queue{Connections: s.Connections, AcceptQueue: s.AcceptQueue, Mean: float64(s.MeanQueue)}
	}
	return load
}

// ServersToProto returns what an engine knows of servers in the form of the fleet API.
func ServersToProto(servers []engine.ServerStatus) (list []*ballastv1.ServerStatus) {
	now := time.Now()
	age := func(reported time.Time) *durationpb.Duration {
		if reported.IsZero() {
			return nil
		}
		return durationpb.New(max(now.Sub(reported), 0))
	}
	for i := range servers {
		s := &servers[i]
		list = append(list, &ballastv1.ServerStatus{
			Service: s.Service, Server: api.ServerToProto(&s.Server), Removed: s.Removed, Health: s.Health, HealthDetail: s.HealthDetail,
			LoadSource: s.Source, Load: s.Load, Available: s.Available, Weight: uint32(s.Weight), Connections: s.Connections,
			ConnectionsExact: s.Exact, Agent: s.Agent, Activity: s.Activity,
			ConnectionsBefore: s.Before, ConnectionsAge: age(s.Counted), LoadAge: age(s.At), WeightAge: age(s.Weighed), HealthAge: age(s.HealthReported), Kept: s.Kept,
		})
		if s.Start.Tenths > 0 {
			list[i].SlowStart, list[i].WholeAt = s.Start.Part(), timestamppb.New(s.Start.Whole)
		}
	}
	return list
}

// Implementation constants: what is kept of a node's texts.
const (
	problems     = 64
	problemBytes = 512
)

// legible shortens a text of a node, and keeps it from doing anything to a terminal or to a table.
func legible(text string) string {
	if len(text) > problemBytes {
		text = strings.ToValidUTF8(text[:problemBytes], "") + " ..."
	}
	return strings.Map(printable, text)
}

// problemsOf shortens the problems that a node reports.
func problemsOf(reported []string) []string {
	kept := make([]string, 0, min(len(reported), problems))
	for _, problem := range reported[:min(len(reported), problems)] {
		kept = append(kept, legible(problem))
	}
	return kept
}

func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return ' '
	}
	return r
}

// report takes one message. Kinds that we do not know are of a newer node, and ignored.
func (h *Hub) report(p *peer, message *ballastv1.FromNode) error {
	if role := senderOf(message); role != "" && role != p.identity.Role {
		return fmt.Errorf("%T is sent by nodes of role %s, not %s", message.Message, role, p.identity.Role)
	}
	switch m := message.Message.(type) {
	case *ballastv1.FromNode_Hello:
		return errors.New("a second Hello")
	case *ballastv1.FromNode_Applied:
		h.Topics.applied(&p.subscriber, m.Applied.Revision)
	case *ballastv1.FromNode_Condition:
		if h.Nodes.recordCondition(p, m.Condition) {
			h.options.Reports.Losses(p.identity, lossesFromProto(m.Condition))
		}
	case *ballastv1.FromNode_Load:
		if !h.Nodes.recordLoad(p, m.Load.Unavailable) { // nobody knows of which host
			m.Load = &ballastv1.LoadReport{}
		}
		h.options.Reports.Load(p.identity, loadFromProto(m.Load))
	case *ballastv1.FromNode_Keys:
		h.Nodes.recordKeys(p, m.Keys)
	case *ballastv1.FromNode_Traffic:
		h.options.Reports.Traffic(p.identity.Name, trafficFromProto(m.Traffic))
	case *ballastv1.FromNode_Health:
		h.options.Reports.Health(p.identity.Name, healthFromProto(m.Health))
	case *ballastv1.FromNode_Explained:
		h.Topics.explained(&p.subscriber, m.Explained)
	case *ballastv1.FromNode_Alive:
		p.alive.Store(true)
		if p.isLB() {
			h.options.Reports.Alive(p.identity.Name)
		}
	case *ballastv1.FromNode_Replica:
		h.Nodes.recordReplica(p, m.Replica)
		if h.options.Replicated != nil {
			h.options.Replicated()
		}
	}
	return nil
}

// senderOf returns the role of the nodes that send a kind of message; empty: any.
func senderOf(message *ballastv1.FromNode) pki.Role {
	switch message.Message.(type) {
	case *ballastv1.FromNode_Load, *ballastv1.FromNode_Keys:
		return pki.Agent
	case *ballastv1.FromNode_Traffic, *ballastv1.FromNode_Health, *ballastv1.FromNode_Replica, *ballastv1.FromNode_Explained:
		return pki.LB
	}
	return ""
}
