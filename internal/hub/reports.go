// What nodes report, and what is known of servers, to and from the form of the streams.
package hub

import (
	"cmp"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/health"
)

// idMax bounds the ids of servers: reports of others are of nobody.
const idMax = 1<<16 - 1

func trafficFromProto(report *ballastv1.TrafficReport) []engine.ServerTraffic {
	servers := make([]engine.ServerTraffic, 0, len(report.Servers))
	for _, s := range report.Servers {
		if s.Id <= idMax {
			servers = append(servers, engine.ServerTraffic{Service: s.Service, ID: uint16(s.Id),
				Seen: balance.Seen{Connections: s.Connections, Closed: s.Closed, Packets: s.Packets, Estimate: s.Open}})
		}
	}
	return servers
}

func healthFromProto(report *ballastv1.HealthReport) []engine.ServerHealth {
	servers := make([]engine.ServerHealth, 0, len(report.Servers))
	for _, s := range report.Servers {
		if s.Id <= idMax {
			servers = append(servers, engine.ServerHealth{Service: s.Service, ID: uint16(s.Id),
				View: health.View{Healthy: s.Healthy, Direct: s.Direct, Unanswered: s.Unanswered && !s.Direct && !s.Healthy, Detail: legible(s.Detail)}})
		}
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

// ServersToProto returns what an engine knows of servers in the form that clients of the fleet API are told it.
func ServersToProto(servers []engine.ServerStatus) (list []*ballastv1.ServerStatus) {
	for i := range servers {
		s := &servers[i]
		list = append(list, &ballastv1.ServerStatus{
			Service: s.Service, Server: api.ServerToProto(&s.Server), Removed: s.Removed, Health: s.Health, HealthDetail: s.HealthDetail,
			LoadSource: s.Source, Load: s.Load, Available: s.Available, Weight: uint32(s.Weight), Connections: s.Connections,
			ConnectionsExact: s.Exact, Agent: s.Agent, Activity: s.Activity,
		})
	}
	return list
}
