// How far experiments are, on standard error.
package sim

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/sim"
)

const (
	simRedraw = 250 * time.Millisecond // of the line on a terminal
	simLine   = 15 * time.Second       // between lines in a file
	simQuiet  = 3 * time.Second        // before the first estimate of the time that is left: earlier ones mislead
)

// simulate runs a plan and shows on standard error how far it is.
func simulate(ctx context.Context, plan sim.Plan) ([]sim.Result, error) {
	runner := sim.NewRunner(plan)
	stopped, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		watch(runner, stopped)
	}()
	results, err := runner.Run(ctx)
	close(stopped)
	<-finished
	return results, err
}

// watch shows the status of a runner until it is stopped.
func watch(runner *sim.Runner, stopped <-chan struct{}) {
	line, interval := command.NewLine(os.Stderr, 0), simLine
	if line.Live {
		interval = simRedraw
	}
	begin := time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-stopped:
			line.Say("")
			return
		case now := <-ticker.C:
			line.Renew(progressLine(runner.Status(), now.Sub(begin)))
		}
	}
}

// progressLine tells how far a runner is, how fast, and how long it will take.
func progressLine(status sim.Status, elapsed time.Duration) string {
	line := fmt.Sprintf("%3.0f %%  %d of %d runs", 100*status.Part, status.Runs, status.Of)
	if rate := float64(status.Events) / elapsed.Seconds(); rate > 0 {
		line += "  " + command.Short(uint64(rate)) + " events/s"
	}
	if elapsed > simQuiet && status.Part > 0 {
		left := time.Duration(float64(elapsed) * (1/status.Part - 1))
		line += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return line + "  " + strings.Join(status.Running, " ")
}
