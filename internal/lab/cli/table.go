// What `ballast-lab run` shows people: the live table and the summary.
package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// A file that is no terminal gets a line at this interval instead of a table that redraws itself.
const plainInterval = 2 * time.Second

// liveTable redraws a table below the lines it says.
type liveTable struct {
	out      *os.File
	terminal bool

	mutex sync.Mutex
	drawn int // lines of the table on the screen
	last  time.Time
	trial map[string]world.Snapshot // the last state of each trial, by name
	order []string
}

func newLiveTable(out *os.File) *liveTable {
	return &liveTable{out: out, terminal: command.IsTerminal(out), trial: map[string]world.Snapshot{}}
}

// say prints a line above the table.
func (t *liveTable) say(format string, values ...any) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.erase()
	fmt.Fprintf(t.out, format+"\n", values...)
}

// show draws the state of the running trial and the final states of those before it.
func (t *liveTable) show(now world.Snapshot) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if _, known := t.trial[now.Trial]; !known {
		t.order = append(t.order, now.Trial)
	}
	t.trial[now.Trial] = now
	if !t.terminal {
		if time.Since(t.last) < plainInterval {
			return
		}
		t.last = time.Now()
		fmt.Fprintf(t.out, "%s: %5.1f s: %d attempted, %d open, %d completed, %d broken\n", now.Trial,
			now.Elapsed.Seconds(), now.Tally.Attempted, now.Open, now.Tally.Completed, now.Tally.Broken)
		return
	}
	t.erase()
	var text strings.Builder
	t.draw(&text, now)
	t.drawn = strings.Count(text.String(), "\n")
	fmt.Fprint(t.out, text.String())
}

// erase removes the table from the screen.
func (t *liveTable) erase() {
	if t.drawn > 0 {
		fmt.Fprintf(t.out, "\x1b[%dA\x1b[J", t.drawn)
		t.drawn = 0
	}
}

func (t *liveTable) draw(out io.Writer, now world.Snapshot) {
	fmt.Fprintf(out, "\n%s  %.0f s  %s\n\n", now.Scenario, now.Elapsed.Seconds(), now.Event)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "AFFINITY\tATTEMPTED\tOPEN\tCOMPLETED\tBROKEN\tHOW")
	for _, name := range t.order {
		trial := t.trial[name]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\n", name,
			trial.Tally.Attempted, trial.Open, trial.Tally.Completed, trial.Tally.Broken, counts(trial.Tally.BrokenBy))
	}
	table.Flush()
	fmt.Fprintf(out, "\nopen connections by server: %s\n", counts(now.ByServer))
	for _, node := range slices.Sorted(maps.Keys(now.Counters)) {
		if strings.HasPrefix(node, "lb") {
			fmt.Fprintf(out, "packets of %s: %s\n", node, counts(now.Counters[node]))
		}
	}
}

// counts renders what is not zero, in the order of names.
func counts[K ~string, V int | uint64](of map[K]V) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name] != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
		}
	}
	return strings.Join(parts, ", ")
}

// printResult prints a summary for people.
func printResult(out io.Writer, result scenario.Result) {
	verdict := map[scenario.Outcome]string{scenario.PromiseKept: "KEPT", scenario.PromiseBroken: "BROKEN", scenario.NotRun: "NOT TESTED"}[result.Outcome]
	fmt.Fprintf(out, "\n%s: promise %s: %s\n(seed %d, %.0f s)\n\n", result.Scenario, verdict, result.Promise, result.Seed, result.Seconds)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(result.Trials) > 0 {
		fmt.Fprintln(table, "TRIAL\tATTEMPTED\tCOMPLETED\tBROKEN\tHOW")
	}
	for _, trial := range result.Trials {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\n", trial.Name, trial.Attempted, trial.Completed, trial.Broken, counts(trial.BrokenBy))
	}
	table.Flush()
	left := maps.Clone(result.Measurements)
	printComparison(out, result.Comparison, left)
	for _, name := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(out, "%s: %.3f\n", name, left[name])
	}
	printFigures(out, result.Figures)
	for _, failure := range result.Failures {
		fmt.Fprintf(out, "failed: %s\n", failure)
	}
	if result.Outcome == scenario.PromiseBroken && result.Error != "" {
		fmt.Fprintf(out, "not played to the end: %s\n", result.Error)
	}
}

// printFigures prints a line for each figure of a paper.
func printFigures(out io.Writer, figures []scenario.Figure) {
	if len(figures) == 0 {
		return
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nFIGURE\tPAPER\tHERE\tSIMULATED\tWHY DIFFERENT")
	for _, one := range figures {
		simulated := "-"
		if one.Simulated != 0 {
			simulated = fmt.Sprintf("%.4g", one.Simulated)
		}
		fmt.Fprintf(table, "%s\t%s\t%.4g\t%s\t%s\n", one.What, one.Paper, one.Here, simulated, one.Why)
	}
	table.Flush()
}

// printComparison prints a line for each policy with its medians and, in brackets, how many times better than hash they are. It takes what it
// prints out of the measurements.
func printComparison(out io.Writer, cells []scenario.Cell, measurements map[string]float64) {
	var policies []string
	for _, cell := range cells {
		if !slices.Contains(policies, cell.Policy) {
			policies = append(policies, cell.Policy)
		}
	}
	columns := slices.DeleteFunc([]string{"per_second", "bytes_per_second", "mean_ms", "p99_ms", "fairness", "refused", "passed_on_per_connection"},
		func(column string) bool {
			return !slices.ContainsFunc(policies, func(policy string) bool { _, measured := measurements[policy+"_"+column]; return measured })
		})
	if len(columns) == 0 {
		return // nothing was compared, or not to the end
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "\nPOLICY\t%s\n", strings.ToUpper(strings.ReplaceAll(strings.Join(columns, "\t"), "_", " ")))
	for _, policy := range policies {
		fmt.Fprint(table, policy)
		for _, column := range columns {
			name := policy + "_" + column
			fmt.Fprintf(table, "\t%.4g", measurements[name])
			if ratio, measured := measurements[name+"_ratio_to_hash"]; measured {
				fmt.Fprintf(table, " (%.2f)", ratio)
			}
			delete(measurements, name)
			delete(measurements, name+"_ratio_to_hash")
		}
		fmt.Fprintln(table)
	}
	table.Flush()
}
