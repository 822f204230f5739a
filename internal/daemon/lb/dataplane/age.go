// What time brings to the tables and what else is written beside them: clocks of servers, counters that begin anew.
package dataplane

import (
	"errors"
	"time"
)

// Age is to be called once in each period: it carries out what was not before, and lets load estimates decay.
func (t *Tables) Age(at time.Time, period time.Duration) error {
	t.mutex.Lock()
	behind := t.Now().Incomplete || t.paths.Expired(at)
	t.mutex.Unlock()
	if behind {
		if err := t.Refresh(); err != nil {
			return err
		}
	}
	t.Hold(func(now *Snapshot) {
		t.missed.listen(now, at, now.Packets)
		t.returning.listen(now, at, t.path.Succession)
		t.late.listen(now, at, t.path.Arrivals)
	})
	t.ageEstimates(at, period)
	return nil
}

// HereHasChanged reports whether packets can be given to servers on this host now and could not at the last Refresh, or the other way round.
func (t *Tables) HereHasChanged() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.paths.HereHasChanged()
}

// Unreachable are the addresses without a known path that are missed.
func (t *Tables) Unreachable(at time.Time) []string { return t.missed.unreachable(t.Now(), at) }

// SetClock tells the clock of a server, if it is in the tables; see lb.SetClock.
func (t *Tables) SetClock(service string, id uint16, offset uint32) (err error) {
	t.Hold(func(now *Snapshot) {
		if index, ok := now.Places[service].Counters[id]; ok {
			err = t.path.SetClock(index, offset)
		}
	})
	return err
}

// ResetCounters zeroes what was counted, and nothing that steers packets.
func (t *Tables) ResetCounters() (err error) {
	t.Hold(func(now *Snapshot) {
		err = t.path.ResetVerdictTraffic(0)
		for _, place := range now.Places {
			err = errors.Join(err, t.path.ResetVerdictTraffic(place.Number))
			for _, index := range place.Counters {
				err = errors.Join(err, t.path.ResetServerTraffic(index))
			}
		}
	})
	return err
}
