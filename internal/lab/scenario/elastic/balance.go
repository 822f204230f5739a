// How evenly connections are spread over a pool that changes.
package elastic

import (
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

const balanceInterval = 20 * time.Millisecond // between two looks at open connections

// present are the servers that take new connections so long after the beginning.
func present(at, length time.Duration) map[string]bool {
	servers := map[string]bool{}
	for i := range elasticServers {
		servers[world.ServerName(i+1)] = i >= elasticDrained || at < drainedAt(i, length)
	}
	for i := range elasticAdded {
		servers[world.ServerName(elasticServers+1+i)] = at >= addedAt(i, length)
	}
	return servers
}

// balanceOf is Jain's index of the open connections of a flow at the servers that are present, in the mean.
func balanceOf(connections []traffic.Connection, flow string, began time.Time, length time.Duration) float64 {
	var indices []float64
	for at := time.Duration(0); at < length; at += balanceInterval {
		now, servers, taking := began.Add(at), present(at, length), 0
		for _, takes := range servers {
			if takes {
				taking++
			}
		}
		open := map[string]float64{}
		for _, one := range connections {
			if one.Flow == flow && servers[one.Server] && !one.Started.After(now) && one.Ended.After(now) {
				open[one.Server]++
			}
		}
		if len(open) > 0 {
			indices = append(indices, scenario.Jain(open, taking))
		}
	}
	return stat.Mean(indices, nil)
}
