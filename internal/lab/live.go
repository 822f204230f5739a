// Watching a trial while it runs.
package lab

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

const liveInterval = 500 * time.Millisecond

// watch calls Live with the state of the trial several times a second, until the returned function is called.
func (s *stage) watch(t *trial) (stop func()) {
	if s.Live == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(liveInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.Live(t.snapshot(s.result.Scenario))
			case <-done:
				s.Live(t.snapshot(s.result.Scenario))
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (t *trial) snapshot(scenario string) Snapshot {
	now := Snapshot{
		Scenario: scenario, Trial: t.setup.name, Baseline: t.setup.baseline,
		Elapsed: time.Since(t.started), ByServer: map[string]int{}, Counters: t.counters(),
	}
	t.mutex.Lock()
	loads := t.loads
	if events := t.outcome.Events; len(events) > 0 {
		now.Event = events[len(events)-1].What
	}
	t.mutex.Unlock()
	for _, running := range loads {
		progress, connections := running.state()
		now.Tally.Attempted += progress.Attempted
		now.Tally.Completed += progress.Completed
		now.Tally.Broken += progress.Broken
		now.Tally.Bytes += progress.Bytes
		now.ByServer = mergeCounts(now.ByServer, progress.OpenByServer)
		now.Open += progress.Open
		if len(connections) > 0 {
			now.Tally.BrokenBy = mergeCounts(now.Tally.BrokenBy, brokenBy(connections))
		}
	}
	return now
}

func brokenBy(connections []traffic.Connection) map[traffic.Class]int {
	broken := map[traffic.Class]int{}
	for _, connection := range connections {
		if connection.Class != traffic.Completed {
			broken[connection.Class]++
		}
	}
	return broken
}

// state is the latest progress and the connections that have ended.
func (l *load) state() (traffic.Progress, []traffic.Connection) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.connections) > 0 && l.ended() { // the last report came before the last connections ended
		broken := 0
		for _, count := range brokenBy(l.connections) {
			broken += count
		}
		l.progress.Attempted, l.progress.Broken = len(l.connections), broken
		l.progress.Completed, l.progress.Open = len(l.connections)-broken, 0
		clear(l.progress.OpenByServer)
	}
	return l.progress, l.connections
}

func (l *load) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}
