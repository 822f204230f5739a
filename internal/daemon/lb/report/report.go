// Package report tells what a load balancer counts: by verdict, by service and by server, for ctl and for Prometheus.
package report

import (
	"errors"
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// NoCookie tells which servers of a service cannot carry cookies.
type NoCookie func(now *dataplane.Snapshot, s *model.Service) map[uint16]bool

// Counters sums every verdict over all services and what belongs to none.
func Counters(now *dataplane.Snapshot) (api.Counters, error) {
	total := map[string]uint64{}
	for _, place := range append(slices.Collect(maps.Values(now.Places)), plan.Place{}) {
		verdicts, err := now.Verdicts(place)
		if err != nil {
			return api.Counters{}, err
		}
		for name, traffic := range verdicts {
			total[name] += traffic.Packets
		}
	}
	return api.Counters{Counters: total}, nil
}

// Sessions tells what came of the connections of services with session tls.
func Sessions(now *dataplane.Snapshot) ([]api.SessionCounts, error) {
	out := []api.SessionCounts{}
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if s.Session != model.SessionTLS {
			continue
		}
		verdicts, err := now.Verdicts(now.Places[s.Name])
		if err != nil {
			return nil, err
		}
		hellos, err := now.Hellos(now.Places[s.Name])
		if err != nil {
			return nil, err
		}
		out = append(out, api.SessionCounts{Service: s.Name, Clients: s.SessionClients, Answered: verdicts["answered_syn"].Packets,
			Handshakes: verdicts["dropped_handshake"].Packets, Hellos: hellos})
	}
	return out, nil
}

// Services tells of every service, its servers and those that have left.
func Services(now *dataplane.Snapshot, noCookie NoCookie) ([]api.ServiceStatus, error) {
	out := []api.ServiceStatus{}
	for i := range now.Running.Services {
		status, err := service(now, &now.Running.Services[i], noCookie)
		if err != nil {
			return nil, err
		}
		out = append(out, status)
	}
	return out, nil
}

func service(now *dataplane.Snapshot, s *model.Service, noCookie NoCookie) (status api.ServiceStatus, err error) {
	place := now.Places[s.Name]
	status.Service = *s
	if status.Verdicts, err = now.Verdicts(place); err != nil {
		return status, err
	}
	if status.TimestampSearches, err = now.TimestampSearches(place); err != nil {
		return status, err
	}
	if s.Predecessor.Exists() && !place.Nodes {
		count, err := now.PredecessorConnections(place)
		if err != nil {
			return status, err
		}
		status.PredecessorConnections = &count
		lost := now.LostPredecessors(s)
		for _, address := range s.Predecessor.Addresses {
			status.PredecessorPaths = append(status.PredecessorPaths, api.PredecessorPath{Address: address, Path: now.DescribePath(address), Lost: lost[address]})
		}
	}
	if place.Nodes {
		if status.Nodes, err = nodes(now, place); err != nil {
			return status, err
		}
		place.Counters = nil // servers get nothing from here
	}
	without := noCookie(now, s)
	add := func(servers []model.Server, removed bool) error {
		for i := range servers {
			server := &servers[i]
			traffic, open, err := now.Traffic(s.CountsOpen(), place, server.ID)
			if err != nil {
				return err
			}
			status.Servers = append(status.Servers, api.ServerStatus{
				Server: *server, Removed: removed, Packets: traffic.Packets, Bytes: traffic.Bytes, Connections: traffic.Connections,
				Open: open, Path: now.DescribePath(server.Address), TakesPart: !without[server.ID],
			})
		}
		return nil
	}
	return status, errors.Join(add(s.Servers, false), add(now.Lingering(s.Name), true))
}

// nodes is what a service's packets from here to nodes came to.
func nodes(now *dataplane.Snapshot, place plan.Place) (list []api.NodeTraffic, err error) {
	for _, node := range now.Tier().Second {
		traffic, _, err := now.Traffic(false, place, node.ID)
		if err != nil {
			return nil, err
		}
		list = append(list, api.NodeTraffic{Name: node.Name, ID: node.ID, Packets: traffic.Packets, Bytes: traffic.Bytes, Connections: traffic.Connections})
	}
	return list, nil
}
