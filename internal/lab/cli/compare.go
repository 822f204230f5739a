package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/comparison"
)

// able is a contender or an event, as compare --list prints it.
type able struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	About string `json:"about"`
}

func compare() *cobra.Command {
	var options comparison.Options
	var listing bool
	var seed string
	var output *command.Output
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Put Ballast, HAProxy, nginx, kube-proxy, nftables and IPVS through the same events",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listing {
				return command.Print(cmd.OutOrStdout(), output, comparable(), func(out *command.Table, all []able) {
					for _, one := range all {
						out.Line("%s\t%s\t%s", one.Kind, one.Name, one.About)
					}
				})
			}
			options.Progress = func(format string, values ...any) { fmt.Fprintf(os.Stderr, format+"\n", values...) }
			if seed != "" {
				number, err := strconv.ParseUint(seed, 0, 64)
				if err != nil {
					return command.Usage("read --seed %q: %w: give a number", seed, err)
				}
				options.Seed = number
			}
			result, err := comparison.Run(cmd.Context(), options)
			if errors.Is(err, comparison.ErrUsage) {
				return command.WithStatus(fmt.Errorf("compare: %w", err), command.StatusUsage)
			}
			if result == nil {
				return fmt.Errorf("compare: %w", err)
			}
			err = errors.Join(err, result.Write(options.Directory))
			return errors.Join(err, command.Print(cmd.OutOrStdout(), output, result, func(out *command.Table, result *comparison.Result) { printComparisonOf(out, result, options.Directory) }))
		},
	}
	flags := cmd.Flags()
	output = command.NewOutput(flags)
	flags.StringSliceVar(&options.Only, "only", nil, "`CONTENDERS`, by commas (default: all)")
	flags.StringSliceVar(&options.Events, "events", nil, "`EVENTS`, by commas or all (default: all; with --short, five)")
	flags.BoolVar(&options.Short, "short", false, "fewer events, fewer connections and shorter times")
	flags.BoolVar(&listing, "list", false, "list contenders and events, and run nothing")
	flags.StringVar(&seed, "seed", "", "repeat the random choices of an earlier run")
	flags.StringVar(&options.Binary, "binary", "", "the ballast to compare (default: the one beside this program)")
	flags.StringVar(&options.Directory, "directory", "ballast-compare", "write results, diagrams and logs into this `DIR`")
	return cmd
}

func comparable() (all []able) {
	for _, one := range comparison.Contenders() {
		all = append(all, able{"contender", one.Name, one.About})
	}
	for _, one := range comparison.Events() {
		all = append(all, able{"event", one.Name, one.About})
	}
	return all
}

func printComparisonOf(out io.Writer, result *comparison.Result, directory string) {
	result.Print(out)
	fmt.Fprintf(out, "\nresults.json, diagrams, and a folder of logs for each contender: %s\n", directory)
}
