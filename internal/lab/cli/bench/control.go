// ballast-lab bench control.
package bench

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	controlbench "github.com/ballast-lb/ballast/internal/lab/bench/control"
	"github.com/ballast-lb/ballast/internal/lab/process"
)

func controlPlane() *cobra.Command {
	options := controlbench.Options{}
	var verbose, noMaps bool
	cmd := &cobra.Command{Use: "control", Short: "Measure the control plane: a controller with the agents and load balancers of a large fleet"}
	flags := cmd.Flags()
	flags.IntVar(&options.Servers, "servers", 1000, "of the service that follows their load, an agent each")
	flags.IntVar(&options.LoadBalancers, "load-balancers", 50, "streams of load balancers")
	flags.Float64Var(&options.Rate, "rate", 4, "reports of each agent, and updates of weights, a second")
	flags.DurationVar(&options.Duration, "duration", 15*time.Second, "of the steady part")
	flags.IntVar(&options.Events, "events", 100, "servers that are added, one after the other")
	flags.IntVar(&options.Services, "services", 4096, "that there are in the end, when all but one come at once; 0: none come")
	flags.IntVar(&options.ServersEach, "servers-each", 16, "of each of these services")
	flags.BoolVar(&noMaps, "no-maps", false, "no load balancer has maps, although this is root")
	flags.BoolVar(&verbose, "verbose", false, "print the controller's log")
	return command.Reading(cmd, command.NewOutput(flags), func(cmd *cobra.Command, _ []string) (*controlbench.Result, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own program: %w", err)
		}
		options.Peers = []string{self, process.Peer, process.Peers}
		options.Maps = os.Geteuid() == 0 && !noMaps
		options.Progress = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
		options.Log = slog.New(slog.DiscardHandler)
		if verbose {
			options.Log = command.NewLog(false, false)
		}
		return controlbench.Run(cmd.Context(), options)
	}, printControl)
}

func printControl(table *command.Table, r *controlbench.Result) {
	row := func(what, format string, args ...any) {
		table.Row(what, fmt.Sprintf(format, args...))
	}
	spread := func(what, unit string, l *controlbench.Latency) {
		if l != nil {
			row(what, "p50 %.1f %s, p99 %.1f %s, max %.1f %s", l.P50, unit, l.P99, unit, l.Max, unit)
		}
	}
	const kilo = 1000
	row("fleet", "%d servers, %d load balancers, %g reports and updates a second", r.Servers, r.LoadBalancers, r.Rate)
	row("all joined", "%.0f ms", r.JoinedMS)
	row("controller", "%.2f CPUs, %d MB", r.ControllerCPU, r.ControllerRSS>>20)
	row("reports", "%.0f/s, %.0f kB/s from agents, %.0f kB/s from load balancers", r.ReportsPerSec, r.BytesFromAgents/kilo, r.BytesFromLBs/kilo)
	row("weights", "%.0f updates/s with %.0f weights/s, %.0f kB/s to load balancers", r.UpdatesPerSec, r.WeightsPerSec, r.BytesToLBs/kilo)
	row("with headers", "%.0f kB/s; Spotlight: %.0f kB/s; ratio %.3f", r.PacketsToLBs/kilo, r.SpotlightBytes/kilo, r.PacketsToLBs/r.SpotlightBytes)
	spread("server added -> last Applied", "ms", r.Applied)
	spread("server added -> maps written", "ms", r.Written)
	spread("server added -> last weight", "ms", r.Weighed)
	row("one server added", "%.0f ms of CPU of the controller", r.EventCPU)
	spread("one update -> maps", "us", r.Reweigh)
	if m := r.Mass; m != nil {
		row("many services", "%d of %d servers", m.Services, m.ServersEach)
		row("one load balancer alone", "planned in %.0f ms, written in %.0f ms (0: it has no maps)", m.PlanMS, m.WriteMS)
		row("in the fleet", "committed in %.0f ms, known to all load balancers in %.0f ms, in maps in %.0f ms", m.CommittedMS, m.StreamsMS, m.LoadedMS)
	}
	if r.StreamsLost > 0 {
		row("streams lost", "%d: this machine has too few CPUs for the fleet, or others use them", r.StreamsLost)
	}
}
