// Package sim is `ballast sim`.
package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/all"
	"github.com/ballast-lb/ballast/internal/sim/plot"
	"github.com/ballast-lb/ballast/internal/sim/report"
)

var errClaimsFail = errors.New("claims fail")

// Command makes `ballast sim`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Check what papers claim, and ask what no test bed can be asked, by simulation",
		Long: `The simulator runs the code that builds the tables, weights and protocols of the data plane, at a scale that no test bed has, and
many times with different random seeds. Nothing is sent anywhere, no root is needed. docs/simulator.md tells how it works,
docs/results.md what comes out.

Each experiment claims numbers. For each, what the paper says is shown beside our mean with its 95 % confidence interval and the band
that an honest run lies in:
  PASS                our mean lies in the band
  DOES-NOT-REPRODUCE  it does, and the paper's value is known not to come out of what the paper describes
  FAIL                it does not, nor does any of the confidence interval
  INCONCLUSIVE        it does not, but the interval reaches the band: run more seeds
  SHOWN               there is nothing to judge by

Exit status of run, report and scenario: 1 when a claim fails, else 2 when one is inconclusive, else 0.`,
		Example: `  ballast sim list
  ballast sim run cheetah-2b
  ballast sim scenario my-question.yaml`,
	}
	cmd.AddCommand(list(), run(), reporting(), scenarios(), speeds())
	return cmd
}

func list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the experiments and what they claim",
		Example: `  ballast sim list
  ballast sim list --json | jq '.[] | select(.name == "shell-6").claims'`,
	}
	return command.Reading(cmd, cmd.Flags().Bool("json", false, "print JSON, with all claims"),
		func(*cobra.Command, []string) ([]listedExperiment, error) { return listed(all.Experiments()), nil }, printExperiments)
}

// listedExperiment is an experiment as `sim list --json` shows it.
type listedExperiment struct {
	Name   string        `json:"name"`
	Title  string        `json:"title"`
	Source string        `json:"source"`
	Method string        `json:"method,omitempty"`
	Seeds  int           `json:"seeds"`
	Extra  bool          `json:"extra"`
	Claims []listedClaim `json:"claims"`
}

type listedClaim struct {
	ID    string   `json:"id"`
	What  string   `json:"what"`
	Unit  string   `json:"unit,omitempty"`
	Paper string   `json:"paper,omitempty"`
	Band  sim.Band `json:"band"`
	Known bool     `json:"known_not_to_reproduce,omitempty"`
	Note  string   `json:"note,omitempty"`
}

func listed(experiments []sim.Experiment) []listedExperiment {
	list := []listedExperiment{}
	for _, e := range experiments {
		one := listedExperiment{Name: e.Name, Title: e.Title, Source: e.Source, Method: e.Method, Seeds: e.Seeds, Extra: e.Extra}
		if one.Seeds == 0 {
			one.Seeds = sim.DefaultSeeds
		}
		for _, c := range e.Claims {
			one.Claims = append(one.Claims, listedClaim{c.ID, c.What, c.Unit, c.Paper, sim.Band{Low: c.Low, High: c.High}, c.Known, c.Note})
		}
		list = append(list, one)
	}
	return list
}

func printExperiments(table *command.Table, experiments []listedExperiment) {
	table.Row("experiment\tclaims\tsource\twhat")
	for _, e := range experiments {
		name := e.Name
		if e.Extra {
			name += " *"
		}
		table.Row(name, len(e.Claims), e.Source, e.Title)
	}
	table.Line("\n* not among `all`")
}

// simFlags are those of all commands that run experiments.
type simFlags struct {
	seeds, workers int
	base           uint64
}

func (f *simFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.seeds, "seeds", 0, "how often each experiment is run (default: as often as it wants, mostly 10)")
	flags.Uint64Var(&f.base, "seed", 1, "the first seed; the next ones follow")
	flags.IntVar(&f.workers, "workers", runtime.GOMAXPROCS(0), "runs at the same time; the results do not depend on it")
}

// maxSeeds bounds the memory of results.
const maxSeeds = 10_000

func (f *simFlags) check() error {
	if f.seeds < 0 || f.seeds > maxSeeds || f.workers < 1 || f.workers > 1024 {
		return command.Usage("run with %d seeds and %d workers: not possible: give up to %d seeds and 1 to 1024 workers", f.seeds, f.workers, maxSeeds)
	}
	return nil
}

// plan is what is to be run for these names.
func (f *simFlags) plan(names []string) (sim.Plan, error) {
	selected, unknown := sim.Select(all.Experiments(), names)
	if len(unknown) > 0 {
		return sim.Plan{}, command.Usage("find experiments %s: there are none of these names: `ballast sim list` shows all", strings.Join(unknown, ", "))
	}
	return sim.Plan{Experiments: selected, Seeds: f.seeds, Base: f.base, Workers: f.workers}, f.check()
}

func run() *cobra.Command {
	var flags simFlags
	var o output
	cmd := &cobra.Command{
		Use:   "run EXPERIMENT...",
		Short: "Run experiments and judge their claims; the exit status is 1 when one fails, 2 when one is inconclusive",
		Long: `Run experiments with several seeds, on all cores, and print for each claim what the paper says, our mean with its 95 % confidence
interval (Student's t over the seeds), the band, and the verdict. Where none of n connections was broken, "<= 3/n" is shown instead of 0: more
could have been missed by chance.

EXPERIMENT is a name of ` + "`ballast sim list`" + `, or "all" for those of the papers, or the beginning of names up to a dash: "cheetah-".

The same seeds give the same numbers, byte for byte, on any machine and any number of cores.`,
		Example: `  ballast sim run cheetah-2a --plot broken.svg
  ballast sim run shell- anolis- --seeds 20
  ballast sim run all --seeds 10 --json > results.json
  ballast sim run beyond-scale --seeds 1 --seed 42`,
		RunE: func(cmd *cobra.Command, names []string) error {
			plan, err := flags.plan(names)
			if err != nil {
				return err
			}
			if err := checkPicture(o.picture, len(plan.Experiments)); err != nil {
				return err
			}
			results, err := simulate(cmd.Context(), plan)
			return errors.Join(err, o.show(cmd, results))
		},
	}
	flags.add(cmd)
	o.add(cmd, "draw the figures of the experiment into this `FILE`.svg or .png")
	return cmd
}

// output is where results go.
type output struct {
	asJSON  bool
	picture string
}

func (o *output) add(cmd *cobra.Command, plotHelp string) {
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON, with the values of each seed and the points of figures")
	cmd.Flags().StringVar(&o.picture, "plot", "", plotHelp)
}

// show prints, draws and judges results.
func (o *output) show(cmd *cobra.Command, results []sim.Result) (err error) {
	if len(results) > 0 && o.asJSON {
		err = command.WriteJSON(cmd.OutOrStdout(), results)
	} else if len(results) > 0 {
		err = report.Text(cmd.OutOrStdout(), results)
	}
	if o.picture != "" && len(results) == 1 {
		err = errors.Join(err, savePicture(o.picture, results[0]))
	}
	return errors.Join(err, failures(results))
}

// statusInconclusive is that of runs which cannot tell whether all claims hold.
const statusInconclusive = 2

// failures is an error that names the claims that fail, or else those that too few seeds were run for.
func failures(results []sim.Result) error {
	named := func(verdict sim.Verdict) string {
		var names []string
		for _, r := range results {
			for _, f := range r.With(verdict) {
				names = append(names, r.Experiment+" "+f.ID)
			}
		}
		return strings.Join(names, ", ")
	}
	if failed := named(sim.Fail); failed != "" {
		return fmt.Errorf("judge results: %w: %s", errClaimsFail, failed)
	}
	if unclear := named(sim.Inconclusive); unclear != "" {
		return command.WithStatus(fmt.Errorf("judge results: claims are inconclusive: %s: run more seeds", unclear), statusInconclusive)
	}
	return nil
}

// checkPicture refuses, before a long run, what savePicture could not do.
func checkPicture(name string, experiments int) error {
	if name == "" {
		return nil
	}
	if extension := filepath.Ext(name); extension != ".svg" && extension != ".png" {
		return command.Usage("draw %s: not the name of a picture: end it with .svg or .png", name)
	}
	if experiments != 1 {
		return command.Usage("draw %s: %d experiments do not fit in one picture: run one, or use `ballast sim report`", name, experiments)
	}
	return nil
}

func savePicture(name string, result sim.Result) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("save picture: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if filepath.Ext(name) == ".png" {
		err = plot.PNG(file, result.Diagrams)
	} else {
		err = plot.SVG(file, result.Diagrams)
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", name, err)
	}
	return nil
}
