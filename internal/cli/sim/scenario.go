package sim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/report"
	"github.com/ballast-lb/ballast/internal/sim/scenario"
)

// Files of scenarios are read up to these sizes.
const (
	maxScenarioBytes = 2 << 20
	maxTraceBytes    = 1 << 30
)

func simScenario() *cobra.Command {
	var flags simFlags
	var asJSON, check bool
	var picture string
	cmd := &cobra.Command{
		Use:   "scenario FILE",
		Short: "Answer a question of your own: servers, traffic, policies and events from a file",
		Long: `Simulate what a YAML file describes: which servers there are, who connects and for how long, or how much work requests are, what happens to servers
and load balancers, and which policies are to be compared. It tells how many connections break and how even servers are, or how long requests take.
All policies meet the same connections and requests, and the same events. What the file expects is judged as
claims are, and the exit status is 1 when it does not come true; so a scenario can be a test.

docs/simulator.md explains the keys, examples/sim has a file for each kind of policy. A file with mistakes is refused with the lines of all of them.`,
		Example: `  ballast sim scenario examples/sim/rack-loss.yaml
  ballast sim scenario examples/sim/rolling-update.yaml --seeds 5 --plot update.svg
  ballast sim scenario my-question.yaml --check`,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := errors.Join(flags.check(), checkPicture(picture, 1)); err != nil {
				return err
			}
			experiment, err := loadScenario(arguments[0])
			if err != nil || check {
				return err
			}
			results, err := simulate(cmd.Context(), sim.Plan{Experiments: []sim.Experiment{experiment}, Seeds: flags.seeds, Base: flags.base, Workers: flags.workers})
			if err != nil {
				return err
			}
			if asJSON {
				err = command.WriteJSON(cmd.OutOrStdout(), results)
			} else {
				err = report.Text(cmd.OutOrStdout(), results)
			}
			if picture != "" {
				err = errors.Join(err, savePicture(picture, results[0]))
			}
			return errors.Join(err, failures(results))
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the values of each seed and the points of figures")
	cmd.Flags().StringVar(&picture, "plot", "", "draw what happens over time into this `FILE`.svg or .png")
	cmd.Flags().BoolVar(&check, "check", false, "only check the file")
	return cmd
}

// loadScenario reads a file and those that it names, as seen from its folder.
func loadScenario(name string) (sim.Experiment, error) {
	text, err := readUpTo(name, maxScenarioBytes)
	if err != nil {
		return sim.Experiment{}, err
	}
	parsed, err := scenario.Parse(name, text, func(named string) ([]byte, error) {
		if !filepath.IsAbs(named) {
			named = filepath.Join(filepath.Dir(name), named)
		}
		return readUpTo(named, maxTraceBytes)
	})
	if err != nil {
		return sim.Experiment{}, err
	}
	return parsed.Experiment(filepath.Base(name)), nil
}

// readUpTo reads a file that may not be larger than most bytes.
func readUpTo(name string, most int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("read scenario: %s is larger than %d bytes: shorten it", name, most)
	}
	return text, nil
}
