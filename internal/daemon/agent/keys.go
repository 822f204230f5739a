package agent

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

// keyPeriod is how often an agent counts which connections carry cookies of which key; see rotation.ReportLife.
const keyPeriod = 5 * time.Second

// echoes counts the living connections by the epoch that their client has echoed last; 0: of a key that is not known any more. Who has
// been told no keys cannot tell.
func (a *agent) echoes() (keys model.Keys, connections map[uint32]uint64, err error) {
	a.mu.Lock()
	keys = a.applied.Fleet.Keys
	a.mu.Unlock()
	if len(keys.Cookie) == 0 {
		return keys, nil, nil
	}
	byParity, err := a.path.Echoes()
	if err != nil {
		return keys, nil, err
	}
	connections = map[uint32]uint64{}
	epochs := [2]uint32{}
	for epoch := range keys.Cookie {
		epochs[epoch&1] = epoch
		connections[epoch] = 0
	}
	for parity, n := range byParity {
		if n > 0 {
			connections[epochs[parity]] += n
		}
	}
	return keys, connections, nil
}

// reportKeys tells controllers until ctx ends, at every change and from time to time.
func (a *agent) reportKeys(ctx context.Context) {
	tick := time.NewTicker(keyPeriod)
	defer tick.Stop()
	for {
		a.client.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: a.keyReport()}})
		select {
		case <-tick.C:
		case <-a.keysChanged:
		case <-ctx.Done():
			return
		}
	}
}

func (a *agent) keyReport() *ballastv1.KeyReport {
	keys, connections, err := a.echoes()
	report := &ballastv1.KeyReport{Epochs: keys.Epochs(), Current: keys.Current, Connections: connections}
	if err != nil {
		report.Unavailable = err.Error()
	}
	return report
}

// warnOfKeys says that a file drops a key too early: nobody else can know by a file. The caller holds mu.
func (a *agent) warnOfKeys(next *config.File) {
	if a.applied == nil {
		return
	}
	before := a.applied.Fleet.Keys
	byParity, err := a.path.Echoes()
	for epoch := range before.Cookie {
		if _, kept := next.Fleet.Keys.Cookie[epoch]; !kept && err == nil && byParity[epoch&1] > 0 {
			a.log.Warn("a key is dropped that living connections still carry: they break where load balancers drop it, too", "epoch", epoch, "connections", byParity[epoch&1])
		}
	}
}

// tellKeys has the keys reported at once.
func (a *agent) tellKeys() {
	select {
	case a.keysChanged <- struct{}{}:
	default:
	}
}

var connectionsMetric = prometheus.NewDesc("ballast_agent_key_connections",
	"Living connections by the epoch of the key whose cookie their client has echoed last; 0: of a key that is gone.", []string{"epoch"}, nil)

func (a *agent) collectKeys(out chan<- prometheus.Metric) {
	_, connections, err := a.echoes()
	if err != nil {
		out <- prometheus.NewInvalidMetric(connectionsMetric, err)
		return
	}
	for _, epoch := range slices.Sorted(maps.Keys(connections)) {
		out <- prometheus.MustNewConstMetric(connectionsMetric, prometheus.GaugeValue, float64(connections[epoch]), strconv.FormatUint(uint64(epoch), 10))
	}
}
