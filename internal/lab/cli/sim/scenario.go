// ballast-lab sim scenario.
package sim

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/scenario"
)

// Files of scenarios are read up to these sizes.
const (
	maxScenarioBytes = 2 << 20
	maxTraceBytes    = 1 << 30
)

func scenarios() *cobra.Command {
	var flags simFlags
	var o output
	var check bool
	cmd := &cobra.Command{
		Use:   "scenario FILE",
		Short: "Answer a question of your own: servers, traffic, policies and events from a file",
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := errors.Join(flags.check(), checkPicture(o.picture, 1)); err != nil {
				return err
			}
			experiment, err := load(cmd, arguments[0])
			if err != nil || check {
				return err
			}
			results, err := simulate(cmd.Context(), sim.Plan{Experiments: []sim.Experiment{experiment}, Seeds: flags.seeds, Base: flags.base, Workers: flags.workers})
			if err != nil {
				return err
			}
			return o.show(cmd, results)
		},
	}
	flags.add(cmd)
	o.add(cmd, "draw what happens over time into this `FILE`.svg or .png")
	cmd.Flags().BoolVar(&check, "check", false, "only check the file")
	return cmd
}

// load reads a file and those that it names, as seen from its folder.
func load(cmd *cobra.Command, name string) (sim.Experiment, error) {
	text, err := readUpTo(cmd, name, maxScenarioBytes)
	if err != nil {
		return sim.Experiment{}, err
	}
	parsed, err := scenario.Parse(name, text, func(named string) ([]byte, error) {
		if !filepath.IsAbs(named) {
			named = filepath.Join(filepath.Dir(name), named)
		}
		return readUpTo(cmd, named, maxTraceBytes)
	})
	if err != nil {
		return sim.Experiment{}, err
	}
	return parsed.Experiment(filepath.Base(name)), nil
}

// readUpTo reads a file that may not be larger than most bytes.
func readUpTo(cmd *cobra.Command, name string, most int64) ([]byte, error) {
	text, err := command.ReadUpTo(cmd, name, most+1)
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes: shorten it", name, most)
	}
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return text, nil
}
