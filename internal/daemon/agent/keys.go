// Which keys living connections carry cookies of.
package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// keyPeriod is how often an agent counts which connections carry cookies of which key; see rotation.ReportLife.
const keyPeriod = 5 * time.Second

// keyReporter counts connections by key. It is safe for concurrent use.
type keyReporter struct {
	path    *server.Server
	log     *slog.Logger
	keys    atomic.Pointer[model.Keys]
	tickets atomic.Pointer[ticketReport]
	changed chan struct{} // has them reported

	uncounted atomic.Pointer[error] // of the last report
}

func newKeyReporter(path *server.Server, log *slog.Logger) *keyReporter {
	k := &keyReporter{path: path, log: log, changed: make(chan struct{}, 1)}
	k.keys.Store(&model.Keys{})
	k.tickets.Store(&ticketReport{})
	return k
}

// echoes counts the living connections by the epoch that their client has echoed last; 0: of a key that is not known any more. Without
// keys it is not known.
func (k *keyReporter) echoes() (keys *model.Keys, connections map[uint32]uint64, err error) {
	keys = k.keys.Load()
	if len(keys.Cookie) == 0 {
		return keys, nil, nil
	}
	byParity, err := k.path.Echoes()
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

// run reports until ctx ends, at every change and from time to time.
func (k *keyReporter) run(ctx context.Context, send func(*ballastv1.FromNode)) {
	tick := time.NewTicker(keyPeriod)
	defer tick.Stop()
	for {
		keys, connections, err := k.echoes()
		k.uncounted.Store(&err)
		report := &ballastv1.KeyReport{Epochs: keys.Epochs(), Current: keys.Current, Connections: connections, Fingerprints: map[uint32][]byte{}}
		for epoch, key := range keys.Cookie {
			report.Fingerprints[epoch] = rotation.Fingerprint(key)
		}
		if keys.Placement != [16]byte{} {
			report.Placement = rotation.Fingerprint(keys.Placement)
		}
		tickets := k.tickets.Load()
		report.Tickets, report.OwnTickets = tickets.fingerprints, tickets.own
		if err != nil {
			report.Unavailable = err.Error()
		}
		send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: report}})
		select {
		case <-tick.C:
		case <-k.changed:
		case <-ctx.Done():
			return
		}
	}
}

// problem is why connections could not be counted when they were last reported; nil: they were.
func (k *keyReporter) problem() error {
	if err := k.uncounted.Load(); err != nil {
		return *err
	}
	return nil
}

// set takes other keys, and has them reported at once where the maps have changed for it.
func (k *keyReporter) set(next *model.Keys, changed bool) {
	before := k.keys.Swap(next)
	for epoch := range before.Cookie {
		if _, kept := next.Cookie[epoch]; !kept {
			k.warnOfDropped(epoch)
		}
	}
	if changed {
		k.reportSoon()
	}
}

// setTickets takes by which keys applications read session tickets.
func (k *keyReporter) setTickets(next ticketReport) {
	if before := k.tickets.Swap(&next); !before.equal(&next) {
		k.reportSoon()
	}
}

func (k *keyReporter) reportSoon() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// warnOfDropped says that a key is dropped too early: nobody else can know by a file.
func (k *keyReporter) warnOfDropped(epoch uint32) {
	if byParity, err := k.path.Echoes(); err == nil && byParity[epoch&1] > 0 {
		k.log.Warn("a key is dropped that living connections still carry: they break where load balancers drop it, too", "epoch", epoch, "connections", byParity[epoch&1])
	}
}

var connectionsMetric = prometheus.NewDesc("ballast_agent_key_connections",
	"Connections by the epoch of the key whose cookie their client echoed last; 0: a dropped key.", []string{"epoch"}, nil)

func (k *keyReporter) collect(out chan<- prometheus.Metric) {
	_, connections, err := k.echoes()
	if err != nil {
		out <- prometheus.NewInvalidMetric(connectionsMetric, err)
		return
	}
	for _, epoch := range slices.Sorted(maps.Keys(connections)) {
		out <- prometheus.MustNewConstMetric(connectionsMetric, prometheus.GaugeValue, float64(connections[epoch]), strconv.FormatUint(uint64(epoch), 10))
	}
}
