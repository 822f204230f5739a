// Watching a trial while it runs.
package scenario

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/world"
)

const liveInterval = 500 * time.Millisecond

// watch calls Live with the state of the trial several times a second, until the returned function is called.
func (run *Run) watch(t *world.Trial) (stop func()) {
	if run.Live == nil {
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
				run.Live(t.Snapshot(run.Result.Scenario))
			case <-done:
				run.Live(t.Snapshot(run.Result.Scenario))
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
