// What a change would do, told by whoever would do it: to clients, and to connections that live.
package api

import (
	"context"
	"net/netip"
	"sync"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// WithDryRun has a client send requests for dry runs so that a server which does not know dry_run refuses them: in JSON, which servers read
// strictly. Of protobuf it would leave the field out, and carry the change out.
func WithDryRun(dryRun bool) connect.ClientOption {
	if dryRun {
		return connect.WithProtoJSON()
	}
	return connect.WithClientOptions()
}

// knowsServers is Desired, as far as it tells of servers.
type knowsServers interface {
	Servers(ctx context.Context, service string) ([]*ballastv1.ServerStatus, error)
	PredecessorConnections(service string) fleet.Connections
}

// Dangers is fleet.Dangers and fleet.Orphaned, by what is known of health and connections now; where nothing is known of health, nobody is
// unhealthy.
func Dangers(ctx context.Context, d knowsServers, before, after *model.Fleet) []string {
	orphaned := fleet.Orphaned(before, after, d.PredecessorConnections)
	return append(orphaned, fleet.Dangers(before, after, func(service string) map[netip.Addr]bool {
		found := map[netip.Addr]bool{}
		servers, _ := d.Servers(ctx, service)
		for _, s := range servers {
			if address, err := netip.ParseAddr(s.Server.Address); err == nil && s.Health == health.Unhealthy {
				found[address] = true
			}
		}
		return found
	}, Counting(ctx, d))...)
}

// Living is fleet.Living, by what is known of connections now.
func Living(ctx context.Context, d knowsServers, before, after *model.Fleet) []string {
	return fleet.Living(before, after, Counting(ctx, d))
}

// Counting tells what is known of connections of servers, and of removed ones together (fleet.OfRemoved), when it is first asked.
func Counting(ctx context.Context, d knowsServers) func(service string, id uint16) fleet.Connections {
	type key struct {
		service string
		id      uint32
	}
	none := fleet.Connections{Known: true, Exact: true}
	known := sync.OnceValue(func() map[key]fleet.Connections {
		found := map[key]fleet.Connections{}
		servers, _ := d.Servers(ctx, "")
		for _, s := range servers {
			one := fleet.Connections{Live: s.GetConnections(), Known: s.Connections != nil, Exact: s.ConnectionsExact}
			if !s.Removed {
				found[key{s.Service, s.Server.GetId()}] = one
				continue
			}
			removed := key{s.Service, fleet.OfRemoved}
			if before, others := found[removed]; others {
				one = one.And(before)
			}
			found[removed] = one
		}
		return found
	})
	return func(service string, id uint16) fleet.Connections {
		counted, ok := known()[key{service, uint32(id)}]
		if !ok && id == fleet.OfRemoved {
			return none
		}
		return counted
	}
}
