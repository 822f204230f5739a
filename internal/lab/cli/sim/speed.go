// ballast-lab sim speed.
package sim

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim/speed"
)

// speedParts is how many parts a measurement is cut into.
const speedParts = 25

// speedResult is how fast one world ran.
type speedResult struct {
	World            string  `json:"world"`
	Connections      int64   `json:"connections"` // alive, on average
	Servers          int     `json:"servers"`
	Events           int64   `json:"events"` // arrivals and ends
	Broken           int64   `json:"broken"`
	CPUSeconds       float64 `json:"cpu_seconds"`
	WallSeconds      float64 `json:"wall_seconds"`
	EventsPerSecond  float64 `json:"events_per_cpu_second"`      // median of the parts
	BestPerSecond    float64 `json:"best_events_per_cpu_second"` // of the parts
	HeapBytes        uint64  `json:"heap_bytes"`                 // of the world at the end
	BytesPerConn     float64 `json:"heap_bytes_per_connection"`
	ProcessPeakBytes uint64  `json:"process_peak_bytes"` // largest resident size so far
}

func speeds() *cobra.Command {
	var connections []int64
	var events int64
	var only string
	cmd := &cobra.Command{Use: "speed", Short: "Measure how many arrivals and ends of connections a core simulates in a second"}
	flags := cmd.Flags()
	flags.Int64SliceVar(&connections, "connections", []int64{10_000, 1_000_000, 10_000_000}, "connections that are alive on average")
	flags.Int64Var(&events, "events", 20_000_000, "events to measure, in each world")
	flags.StringVar(&only, "world", "", "measure only this `WORLD`")
	return command.Reading(cmd, command.NewOutput(flags), func(cmd *cobra.Command, _ []string) (results []speedResult, err error) {
		for _, n := range connections {
			if n < 1000 || n > 150_000_000 || events < 1 {
				return nil, command.Usage("measure %d events with %d connections: give 1 or more, and 1000 to 150000000 connections", events, n)
			}
			for _, world := range speed.Worlds() {
				if only != "" && world.Name != only {
					continue
				}
				result, err := measureWorld(cmd.Context(), world, n, events)
				if err != nil {
					return nil, err
				}
				results = append(results, result)
			}
		}
		if len(results) == 0 {
			return nil, command.Usage("measure world %q: there is none: see --help", only)
		}
		return results, nil
	}, printSpeeds)
}

func measureWorld(ctx context.Context, kind speed.World, connections, events int64) (speedResult, error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	// The collector would let garbage grow to the size of the world.
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	run := kind.Make(connections)
	begin, cpuBegin := time.Now(), cpuTime()
	var rates []float64
	line := command.NewLine(os.Stderr, simLine)
	for run.Events() < events {
		if ctx.Err() != nil {
			return speedResult{}, ctx.Err()
		}
		partBegin, partEvents := cpuTime(), run.Events()
		run.Continue(max(events/speedParts, 1))
		rates = append(rates, float64(run.Events()-partEvents)/(cpuTime()-partBegin).Seconds())
		line.Renew(fmt.Sprintf("%s with %d connections: %d %%", kind.Name, connections, min(100, 100*run.Events()/events)))
	}
	line.Say("")
	slices.Sort(rates)
	cpu, wall := cpuTime()-cpuBegin, time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	result := speedResult{
		World: kind.Name, Connections: connections, Servers: run.Servers(), Events: run.Events(), Broken: run.Broken(),
		CPUSeconds: cpu.Seconds(), WallSeconds: wall.Seconds(), EventsPerSecond: rates[len(rates)/2], BestPerSecond: rates[len(rates)-1],
		HeapBytes: after.HeapAlloc - before.HeapAlloc, ProcessPeakBytes: uint64(usage().Maxrss) * 1024,
	}
	result.BytesPerConn = float64(result.HeapBytes) / float64(connections)
	runtime.KeepAlive(run)
	return result, nil
}

// usage is what this process has used.
func usage() (used unix.Rusage) {
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err) // it does not fail with these arguments
	}
	return used
}

func cpuTime() time.Duration {
	used := usage()
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func printSpeeds(table *command.Table, results []speedResult) {
	table.OfNumbers()
	table.Row("world\tconnections\tservers\tevents\tbroken\tM events/CPU s\tbest part\theap MB\tbytes/connection")
	for _, r := range results {
		table.Line("%s\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%.0f\t%.1f\t", r.World, r.Connections, r.Servers, r.Events, r.Broken,
			r.EventsPerSecond/1e6, r.BestPerSecond/1e6, float64(r.HeapBytes)/1e6, r.BytesPerConn)
	}
	table.Line("\nThe process has taken up to %.0f MB.", float64(results[len(results)-1].ProcessPeakBytes)/1e6)
}
