// Package alone decides when a load balancer judges its servers by its own checks: no controller does it.
//
// It is pure: time is an argument, nothing here does I/O.
package alone

import "time"

// Implementation constants.
const (
	// Patience is how long nobody may judge until the load balancer does: another controller takes over from one that died in less than 3 s.
	Patience = 3 * time.Second
	// settled is how long a controller has to be heard until an outage is over: one that starts over and over again judges nobody.
	settled = 2 * time.Second
	// HandBack is how long controllers are heard, at most, until their word counts again, where they see something else. They count what
	// load balancers report within 15 s (health.ViewLife), and these repeat it every 5 s.
	HandBack = 20 * time.Second
)

// Machine is the state of one load balancer. The zero value has just heard a controller.
type Machine struct {
	judges bool
	lost   time.Time // since when no controller has been heard for long enough; zero: one is
	heard  time.Time // since when one is heard; zero: none is
	since  time.Time // judges: it has
}

// Resume goes on where an earlier process judged.
func (m *Machine) Resume(now time.Time) { *m = Machine{judges: true, lost: now, since: now} }

// Judges reports whether the load balancer judges, and since when.
func (m *Machine) Judges() (since time.Time, ok bool) { return m.since, m.judges }

// Look takes note of whether a controller that judges is heard, and whether all of them see what the load balancer sees. It reports whether
// the load balancer judges now.
func (m *Machine) Look(now time.Time, hears, agrees bool) bool {
	if !hears {
		m.heard = time.Time{}
		if m.lost.IsZero() {
			m.lost = now
		}
		if !m.judges && now.Sub(m.lost) >= Patience {
			m.judges, m.since = true, now
		}
		return m.judges
	}
	if m.heard.IsZero() {
		m.heard = now
	}
	heard := now.Sub(m.heard)
	if heard >= settled && (!m.judges || agrees || heard >= HandBack) {
		m.judges, m.lost = false, time.Time{}
	}
	return m.judges
}
