// Scenarios in networks of namespaces on this machine: ballast-lab run, list, clean.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

// statusNotRun is that of a scenario that could not be played to its end: its promise is neither kept nor broken.
const statusNotRun = 2

var errPromiseBroken = errors.New("the promise is broken")

func run() *cobra.Command {
	var options scenario.Options
	var live bool
	var output *command.Output
	var seed string
	cmd := &cobra.Command{
		Use:   "run SCENARIO",
		Short: "Run a scenario; the exit status tells whether its promise was kept",
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if err := command.NotNegative("duration", options.Duration); err != nil {
				return err
			}
			if options.Rate < 0.01 || options.Rate > 1 {
				return command.Usage("read --rate %v: out of range: use 0.01 to 1", options.Rate)
			}
			options.Progress = func(format string, values ...any) {
				fmt.Fprintf(os.Stderr, format+"\n", values...)
			}
			if seed != "" {
				number, err := strconv.ParseUint(seed, 0, 64)
				if err != nil {
					return command.Usage("read --seed %q: %w: give a number", seed, err)
				}
				options.Seed = number
			}
			if live {
				table := newLiveTable(os.Stderr)
				options.Live, options.Progress = table.show, table.say
			}
			result, err := lab.Run(cmd.Context(), arguments[0], options)
			return report(cmd.OutOrStdout(), result, err, output)
		},
	}
	command.Complete(cmd, func() (names []string) {
		for _, one := range lab.Scenarios() {
			names = append(names, one.Name)
		}
		return names
	})
	flags := cmd.Flags()
	output = command.NewOutput(flags)
	flags.BoolVar(&live, "live", false, "show a table of what is going on")
	flags.BoolVar(&options.Keep, "keep", false, "leave the network as it is at the end")
	flags.StringVar(&seed, "seed", "", "repeat the random choices of an earlier run")
	flags.StringVar(&options.Binary, "binary", "", "the ballast to test (default: the one beside this program)")
	flags.DurationVar(&options.Duration, "duration", 0, "length of idle, wrap, throughput and elastic, or of each measurement of even, uneven, uneven-links,\n"+
		"bimodal, choices, quic-full, quic-tail and weight-loss, which then compare all policies, repeatedly (default: short)")
	flags.StringVar(&options.Affinity, "affinity", "", "churn, ipv6: of the service, cookie or table (default: cookie)")
	flags.Float64Var(&options.Rate, "rate", 1, "churn, ipv6: share of the usual connections and bytes per second, for machines that cannot carry them")
	flags.StringVar(&options.Beside, "beside", "", "pair: haproxy, to do the same with HAProxy and keepalived, which must be installed (default: nothing)")
	flags.StringVar(&options.Dispatch, "dispatch", "", "churn: policy of the service, or "+scenario.AllPolicies+": a service of each, fewer connections")
	return cmd
}

// report prints a result and turns an outcome into an error with its status.
func report(out io.Writer, result scenario.Result, err error, output *command.Output) error {
	switch {
	case result.Scenario == "": // nothing was tried
	case output.Structured():
		if err := output.Write(out, result); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	default:
		printResult(out, result)
	}
	switch {
	case errors.Is(err, scenario.ErrUsage):
		return command.WithStatus(err, command.StatusUsage)
	case err != nil:
		return command.WithStatus(fmt.Errorf("scenario %s: its promise is not tested: %w", result.Scenario, err), statusNotRun)
	case !result.Kept:
		return fmt.Errorf("scenario %s: %w: repeat with --seed %d", result.Scenario, errPromiseBroken, result.Seed)
	}
	return nil
}

// listed is a scenario, as --json prints it.
type listed struct {
	Name     string  `json:"name"`
	Promise  string  `json:"promise"`
	Deadline float64 `json:"deadline_seconds"`
}

func list() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the scenarios and what each promises"}
	return command.Reading(cmd, command.NewOutput(cmd.Flags()), func(*cobra.Command, []string) (entries []listed, err error) {
		for _, scenario := range lab.Scenarios() {
			entries = append(entries, listed{scenario.Name, scenario.Promise, scenario.Deadline.Seconds()})
		}
		return entries, nil
	}, func(out *command.Table, entries []listed) {
		for _, one := range entries {
			out.Line("%-15s %s", one.Name, one.Promise)
		}
	})
}

func clean() *cobra.Command {
	cmd := &cobra.Command{Use: "clean", Short: "Remove kept networks and what killed runs left behind"}
	output := command.NewOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cleaned, err := host.Clean(true)
		return errors.Join(err, command.Print(cmd.OutOrStdout(), output, cleaned, func(out *command.Table, cleaned host.Cleaned) {
			for _, one := range cleaned.Removed {
				out.Line("removed %s", one)
			}
			for _, id := range cleaned.Running {
				out.Line("lab %s is running: not touched", id)
			}
			if len(cleaned.Removed) == 0 && err == nil {
				out.Line("nothing to remove")
			}
		}))
	}
	return cmd
}
