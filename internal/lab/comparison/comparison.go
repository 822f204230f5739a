// Package comparison puts Ballast and what people have in its place through the same events, one after the other, in the same network, with the
// same clients, and counts what these see.
package comparison

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// ErrUsage is what is asked for that does not exist.
var ErrUsage = errors.New("not possible")

// Options are what the caller may choose.
type Options struct {
	host.Options
	Only      []string // names of contenders; none: all
	Events    []string // names of events; none: all
	Short     bool     // fewer events and shorter times
	Directory string   // for results and logs
}

// sizes are how much and how long.
type sizes struct {
	connections   int           // that stay open
	thinks        time.Duration // between their requests, mean
	shorts        float64       // new connections a second for one request
	patience      time.Duration // without an answer, after which a connection is broken
	before        time.Duration // of quiet before an event
	settle, after time.Duration // behind it; the moment that still counts as during the event, and the rest
	between       time.Duration // between the parts of an event
	churning      time.Duration // changes at a rate go on
	work          time.Duration // of a measurement of the cost
	repeats       int           // of that; the least counts
	idle          int           // connections that say nothing, for their memory
	opening       time.Duration // in which these are made
	silence       time.Duration // of each
}

var (
	fullSizes  = sizes{300, 500 * time.Millisecond, 100, 3 * time.Second, 2 * time.Second, time.Second, 3500 * time.Millisecond, 1500 * time.Millisecond, 20 * time.Second, 3 * time.Second, 4, 6000, 4 * time.Second, 12 * time.Second}
	shortSizes = sizes{120, 400 * time.Millisecond, 50, 1500 * time.Millisecond, time.Second, 500 * time.Millisecond, 1600 * time.Millisecond, 700 * time.Millisecond, 8 * time.Second, 2 * time.Second, 1, 3000, 2 * time.Second, 4 * time.Second}
)

// Result is all that was measured.
type Result struct {
	Seed       uint64    `json:"seed,string"`
	Short      bool      `json:"short"`
	Begin      time.Time `json:"begin"`
	Seconds    float64   `json:"seconds"`
	Kernel     string    `json:"kernel"`
	Processor  string    `json:"processor"`
	CPUs       int       `json:"cpus"`
	Schedule   []Step    `json:"schedule"`
	Contenders []Row     `json:"contenders"`
}

// Row is what was measured of one contender.
type Row struct {
	Name     string     `json:"name"`
	About    string     `json:"about"`
	Version  string     `json:"version,omitempty"`
	NotRun   string     `json:"not_run,omitempty"` // why; nothing was measured
	Error    string     `json:"error,omitempty"`   // why it was not measured to the end
	Cost     *Cost      `json:"cost,omitempty"`
	Capacity *Capacity  `json:"capacity,omitempty"`
	Steps    []Measured `json:"steps"`
	Quiet    Latency    `json:"quiet"`                                  // the medians of all steps before their events
	Dropped  int        `json:"packets_lost_by_this_machine,omitempty"` // that found a CPU's queue full
	Messages string     `json:"log,omitempty"`                          // its folder in the directory
}

// Cost is of 100,000 small requests over 64 connections at full speed (wrk), in seconds of CPU time.
type Cost struct {
	Total     float64 `json:"total_cpu_seconds"`    // of the machine: clients, router and servers too
	Balancers float64 `json:"balancer_cpu_seconds"` // Total without that of direct; 0 where that was not measured
	Own       float64 `json:"process_cpu_seconds"`  // of the balancers' processes
	PerSecond float64 `json:"requests_per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Errors    string  `json:"errors,omitempty"` // that wrk reported
}

// Run runs the comparison. What was measured until then is valid also with an error.
func Run(ctx context.Context, options Options) (*Result, error) {
	size := &fullSizes
	if options.Short {
		size = &shortSizes
		if len(options.Events) == 0 {
			options.Events = shortEvents
		}
	}
	return run(ctx, options, Contenders(), size)
}

func run(ctx context.Context, options Options, all []Contender, size *sizes) (*Result, error) {
	contenders, err := choose(all, func(c Contender) string { return c.Name }, options.Only)
	if err != nil {
		return nil, err
	}
	events, err := choose(Events(), func(e Event) string { return e.Name }, options.Events)
	if err != nil {
		return nil, err
	}
	if err := options.Complete(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, host.ErrNotRoot
	}
	clients := Contender{Programs: map[string]string{"nginx": "nginx-light", "wrk": "wrk", "ip": "iproute2"}}
	if err := clients.missing(); err != nil {
		return nil, fmt.Errorf("find what servers, clients and the router run: %w", err)
	}
	begin := time.Now()
	result := &Result{Seed: options.Seed, Short: options.Short, Begin: begin.UTC().Truncate(time.Second), Kernel: kernel(), Processor: processor(), CPUs: runtime.NumCPU(),
		Schedule: Schedule(options.Seed, events)}
	var errs []error
	for i := range contenders {
		c := &contenders[i]
		options.Progress("%d of %d: %s: %s", i+1, len(contenders), c.Name, c.About)
		row := Row{Name: c.Name, About: c.About, Steps: []Measured{}}
		if err := c.missing(); err != nil {
			row.NotRun = err.Error()
			options.Progress("%s: not run: %v", c.Name, err)
		} else {
			row.Version = c.version(ctx, options.Binary)
			if err := compete(ctx, &options, c, size, result.Schedule, events, &row); err != nil {
				row.Error = err.Error()
				options.Progress("%s: %v", c.Name, err)
				errs = append(errs, err)
			}
		}
		result.Contenders = append(result.Contenders, row)
		if ctx.Err() != nil {
			break
		}
	}
	result.Seconds = world.Round(time.Since(begin))
	result.compare()
	return result, errors.Join(errs...)
}

// compete puts one contender through the schedule.
func compete(ctx context.Context, options *Options, c *Contender, size *sizes, schedule []Step, events []Event, row *Row) error {
	row.Messages = c.Name
	folder := filepath.Join(options.Directory, c.Name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder of logs: %w", err)
	}
	log, err := os.Create(filepath.Join(folder, "events.log"))
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	defer log.Close()
	outcome, err := world.RunTrial(ctx, options.Options, c.setup(), func(*world.Trial) func() { return func() {} }, func(t *world.Trial) {
		defer func() { script.Check(keepLogs(t.Lab.Dir, folder)) }()
		r := newRound(t, c, c.New(t), size)
		r.note = func(format string, values ...any) {
			fmt.Fprintf(log, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, values...))
		}
		r.start()
		cost := r.measureCost()
		row.Cost = &cost
		options.Progress("%s: %.0f requests/s, %.1f CPU seconds of the machine for 100,000", c.Name, cost.PerSecond, cost.Total)

		for i, step := range schedule {
			if events[i].Balancer && c.Balancers == 0 {
				continue
			}
			m := r.play(step, &events[i])
			row.Steps = append(row.Steps, m)
			script.Check(writeLines(filepath.Join(folder, step.Event+".connections.json"), t.Traffic.Loads()))
			options.Progress("%s: %-18s %3d of %d broken, %d ended with their server, %d stalled, %d requests lost, p99 %.1f, %.1f, %.1f ms", c.Name, step.Event,
				m.Broken, m.Alive, m.Ended, m.Stalled, m.Lost, m.Before.P99, m.During.P99, m.After.P99)
		}
		capacity := r.measureCapacity()
		row.Capacity = &capacity
		options.Progress("%s: %.0f new connections/s, %.1f kB of the machine for an idle one", c.Name, capacity.New, capacity.Total)
	})
	row.Dropped = int(outcome.Overflowed)
	return err
}

// writeLines writes every connection of the last load, one a line.
func writeLines(path string, loads []*world.Load) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	_, connections := loads[len(loads)-1].State()
	for i := range connections {
		if err := encoder.Encode(&connections[i]); err != nil {
			return err
		}
	}
	return file.Close()
}

// keepLogs copies what the nodes of a lab have written for people: logs and configurations.
func keepLogs(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		kept := slices.Contains([]string{".log", ".conf", ".yaml"}, filepath.Ext(path))
		if err != nil || !kept || !entry.Type().IsRegular() {
			return nil // a file system of BPF, or it is gone
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 {
			return nil
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, strings.ReplaceAll(name, string(filepath.Separator), "-")), text, 0o644)
	})
}

// compare fills in what one row says by another.
func (r *Result) compare() {
	direct, idle := 0.0, 0.0
	for _, row := range r.Contenders {
		if row.Name == "direct" && row.Cost != nil {
			direct = row.Cost.Total
		}
		if row.Name == "direct" && row.Capacity != nil {
			idle = row.Capacity.Total
		}
	}
	for i := range r.Contenders {
		row := &r.Contenders[i]
		if row.Cost != nil && direct > 0 {
			row.Cost.Balancers = row.Cost.Total - direct
		}
		if row.Capacity != nil && idle > 0 {
			row.Capacity.Balancers = row.Capacity.Total - idle
		}
		median := func(of func(Latency) float64) float64 {
			var values []float64
			for _, step := range row.Steps {
				values = append(values, of(step.Before))
			}
			if len(values) == 0 {
				return 0
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		for _, step := range row.Steps {
			row.Quiet.Requests += step.Before.Requests
		}
		row.Quiet.P50 = median(func(l Latency) float64 { return l.P50 })
		row.Quiet.P99 = median(func(l Latency) float64 { return l.P99 })
		row.Quiet.P999 = median(func(l Latency) float64 { return l.P999 })
	}
}
