// Package keys reports which keys living connections carry cookies of.
package keys

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tickets"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// period is how often an agent counts which connections carry cookies of which key; see rotation.ReportLife.
const period = 5 * time.Second

// Reporter counts connections by key. It is safe for concurrent use.
type Reporter struct {
	path    *server.Server
	log     *slog.Logger
	known   atomic.Pointer[known]
	tickets atomic.Pointer[tickets.Report]
	changed chan struct{} // has them reported

	uncounted atomic.Pointer[error] // of the last report
}

// known are the keys, and where subflows of MPTCP join, which carry no cookie.
type known struct {
	keys  *model.Keys
	joins []plan.Join
}

// New returns a reporter that knows no keys yet.
func New(path *server.Server, log *slog.Logger) *Reporter {
	k := &Reporter{path: path, log: log, changed: make(chan struct{}, 1)}
	k.known.Store(&known{keys: &model.Keys{}})
	k.tickets.Store(&tickets.Report{})
	return k
}

// Echoes counts the living connections by the epoch that their client has echoed last; 0: of a key that is not known any more. Subflows of MPTCP count for
// the epoch of their port, where it is not the current one. Without keys it is not known.
func (k *Reporter) Echoes() (keys *model.Keys, connections map[uint32]uint64, err error) {
	known := k.known.Load()
	if keys = known.keys; len(keys.Cookie) == 0 {
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
	return keys, connections, known.addSubflows(connections)
}

func (k *known) addSubflows(connections map[uint32]uint64) error {
	var at []netip.AddrPort
	for _, join := range k.joins {
		if join.Epoch != k.keys.Current {
			at = append(at, join.At)
		}
	}
	if len(at) == 0 {
		return nil
	}
	subflows, err := mptcp.Used(at)
	for _, join := range k.joins {
		connections[join.Epoch] += subflows[join.At]
	}
	return err
}

// Run reports until ctx ends, at every change and from time to time.
func (k *Reporter) Run(ctx context.Context, send func(*ballastv1.FromNode)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		keys, connections, err := k.Echoes()
		k.uncounted.Store(&err)
		report := &ballastv1.KeyReport{Epochs: keys.Epochs(), Current: keys.Current, Connections: connections, Fingerprints: map[uint32][]byte{}}
		for epoch, key := range keys.Cookie {
			report.Fingerprints[epoch] = rotation.Fingerprint(key)
		}
		if keys.Placement != [16]byte{} {
			report.Placement = rotation.Fingerprint(keys.Placement)
		}
		read := k.tickets.Load()
		report.Tickets, report.OwnTickets = read.Fingerprints, read.Own
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

// Problem is why connections could not be counted when they were last reported; nil: they were.
func (k *Reporter) Problem() error {
	if err := k.uncounted.Load(); err != nil {
		return *err
	}
	return nil
}

// Set takes other keys, and where subflows join. It has them reported at once where the maps have changed for it.
func (k *Reporter) Set(next *model.Keys, joins []plan.Join, changed bool) {
	before := k.known.Swap(&known{next, joins})
	for epoch := range before.keys.Cookie {
		if _, kept := next.Cookie[epoch]; !kept {
			k.warnOfDropped(before, epoch)
		}
	}
	if changed {
		k.reportSoon()
	}
}

// SetTickets takes by which keys applications read session tickets.
func (k *Reporter) SetTickets(next tickets.Report) {
	if before := k.tickets.Swap(&next); !before.Equal(&next) {
		k.reportSoon()
	}
}

func (k *Reporter) reportSoon() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// warnOfDropped warns that a key is dropped too early: nobody else can know by a file.
func (k *Reporter) warnOfDropped(before *known, epoch uint32) {
	byParity, err := k.path.Echoes()
	living := map[uint32]uint64{epoch: byParity[epoch&1]}
	if err = errors.Join(err, before.addSubflows(living)); err == nil && living[epoch] > 0 {
		k.log.Warn("a key is dropped that living connections still need: they break where load balancers drop it, too", "epoch", epoch, "connections", living[epoch])
	}
}

var connectionsMetric = prometheus.NewDesc("ballast_agent_key_connections",
	"Connections by the epoch of the key whose cookie their client echoed last; 0: a dropped key.", []string{"epoch"}, nil)

// Current is the epoch of the key that is written; 0: none is known.
func (k *Reporter) Current() uint32 { return k.known.Load().keys.Current }

// Collect exports the connections by key.
func (k *Reporter) Collect(out chan<- prometheus.Metric) {
	_, connections, err := k.Echoes()
	if err != nil {
		out <- prometheus.NewInvalidMetric(connectionsMetric, err)
		return
	}
	for _, epoch := range slices.Sorted(maps.Keys(connections)) {
		out <- prometheus.MustNewConstMetric(connectionsMetric, prometheus.GaugeValue, float64(connections[epoch]), strconv.FormatUint(uint64(epoch), 10))
	}
}
