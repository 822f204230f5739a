// Package translations watches over the entries of connections whose addresses this host translates: it has those of ended ones freed and
// tells how full the room is.
package translations

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// Period is how often Look is to be called.
const Period = time.Minute

// Implementation constants.
const (
	fullShare     = 0.8
	evictionsLife = 10 * time.Minute // evictions are a problem for so long
	// trackedLife is how long the kernel's translation remembers a silent connection if it does not say.
	trackedLife = 5 * 24 * time.Hour
)

// Path is the data path.
type Path interface {
	SweepTranslated(ages bool) (server.TranslatedUse, error)
}

// Monitor is safe for concurrent use.
type Monitor struct {
	path   Path
	wanted uint32 // the room that was asked for; 0: as the memory is
	log    *slog.Logger
	life   func() time.Duration // of a silent connection

	mu      sync.Mutex
	use     server.TranslatedUse // at the last look that worked
	at      time.Time            // when it was; zero: none did
	aged    time.Time            // when silence was counted last
	evicted time.Time            // when evictions were seen last; zero: never
	err     error                // of the last look
}

// New returns a monitor. wanted is the room that was asked for; 0: none was.
func New(path Path, wanted uint32, log *slog.Logger) *Monitor {
	return &Monitor{path: path, wanted: wanted, log: log, life: trackedFor}
}

// Look has ended connections freed, and counts the others. Silent ones are freed when the kernel's translation has forgotten them, too.
func (m *Monitor) Look(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ages := now.Sub(m.aged) >= m.life()/server.SilentSweeps
	use, err := m.path.SweepTranslated(ages)
	if m.err = err; err != nil {
		m.log.Warn("translated connections are not counted", "error", err)
		return
	}
	if ages {
		m.aged = now
	}
	if use.Evicted > m.use.Evicted {
		m.evicted = now
	}
	m.use, m.at = use, now
}

// trackedFor is how long the kernel's connection tracking remembers a silent connection.
func trackedFor() time.Duration {
	content, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
	if err == nil {
		if seconds, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 31); err == nil && seconds > 0 {
			return time.Duration(seconds) * time.Second
		}
	}
	return trackedLife
}

const larger = "drain this server, stop the agent, `ballast agent --detach`, and start it with --max-translated %d or more"

// Problems are what operators should know.
func (m *Monitor) Problems(now time.Time) (problems []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		problems = append(problems, fmt.Sprintf("translated connections: %v: those that have ended keep their room", m.err))
	}
	if m.at.IsZero() {
		return problems
	}
	remedy := fmt.Sprintf(larger, 2*uint64(m.use.Room))
	if !m.evicted.IsZero() && now.Sub(m.evicted) < evictionsLife {
		problems = append(problems, fmt.Sprintf("translated connections have lost their entries for want of room (%d in all): those among them that live break with the next change of servers: %s", m.use.Evicted, remedy))
	} else if float64(m.use.Entries) >= fullShare*float64(m.use.Room) {
		problems = append(problems, fmt.Sprintf("translated connections have %d of %d entries: when all are taken, those that were silent longest lose theirs, and break with the next change of servers: %s",
			m.use.Entries, m.use.Room, remedy))
	}
	if m.wanted != 0 && m.wanted != m.use.Room {
		problems = append(problems, fmt.Sprintf("--max-translated %d is not in force: the map of an earlier process has room for %d, and living connections: %s", m.wanted, m.use.Room, fmt.Sprintf(larger, m.wanted)))
	}
	return problems
}

// Status returns how full the room was at the last look, nil before the first one.
func (m *Monitor) Status(now time.Time) *api.TranslatedUse {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		return nil
	}
	return &api.TranslatedUse{Entries: m.use.Entries, Room: m.use.Room, Evicted: m.use.Evicted, Age: api.InSeconds(now.Sub(m.at))}
}

var (
	entriesMetric = prometheus.NewDesc("ballast_agent_translated_entries", "Entries of connections whose addresses the host translates, counted every minute; those that ended within some minutes are among them.", nil, nil)
	roomMetric    = prometheus.NewDesc("ballast_agent_translated_room", "How many such entries there can be (--max-translated).", nil, nil)
	evictedMetric = prometheus.NewDesc("ballast_agent_translated_evicted_total", "Such entries that were lost to others for want of room.", nil, nil)
)

// Collect exports how full the room is.
func (m *Monitor) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		out <- prometheus.NewInvalidMetric(entriesMetric, m.err)
		return
	}
	if m.at.IsZero() {
		return
	}
	out <- prometheus.MustNewConstMetric(entriesMetric, prometheus.GaugeValue, float64(m.use.Entries))
	out <- prometheus.MustNewConstMetric(roomMetric, prometheus.GaugeValue, float64(m.use.Room))
	out <- prometheus.MustNewConstMetric(evictedMetric, prometheus.CounterValue, float64(m.use.Evicted))
}
