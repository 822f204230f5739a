package elastic

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

func TestTheServersPresentAreThoseOfFigure9(t *testing.T) {
	count := func(at time.Duration) (n int) {
		for _, takes := range present(at, elasticLength) {
			if takes {
				n++
			}
		}
		return n
	}
	for at, want := range map[time.Duration]int{
		0: elasticServers, addedAt(0, elasticLength): elasticServers + 1, elasticLength / 2: elasticServers + elasticAdded,
		drainedAt(0, elasticLength): elasticServers + elasticAdded - 1, elasticLength: elasticServers + elasticAdded - elasticDrained,
	} {
		if got := count(at); got != want {
			t.Errorf("%d servers after %v, want %d", got, at, want)
		}
	}
}

func TestBalanceIsThatOfOpenConnectionsAtServersThatArePresent(t *testing.T) {
	began := time.Unix(1000, 0)
	const length = time.Second
	at := func(flow, server string, from, to time.Duration) traffic.Connection {
		return traffic.Connection{Flow: flow, Server: server, Started: began.Add(from), Ended: began.Add(to)}
	}
	var all []traffic.Connection
	for i := range elasticServers { // one connection each while no server has been added
		all = append(all, at("even", world.ServerName(i+1), 0, addedAt(0, length)))
	}
	all = append(all,
		at("one", world.ServerName(0+1), 0, addedAt(0, length)),
		at("drained", world.ServerName(0+1), drainedAt(0, length)+time.Millisecond, length), at("drained", world.ServerName(elasticDrained+1), 0, balanceInterval),
	)
	for flow, want := range map[string]float64{"even": 1, "one": 1. / elasticServers, "drained": 1. / elasticServers} {
		if got := balanceOf(all, flow, began, length); got != want {
			t.Errorf("%s: %v, want %v", flow, got, want)
		}
	}
}
