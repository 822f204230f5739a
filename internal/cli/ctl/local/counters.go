// ctl counter.
package local

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
)

// Counter makes `ballast ctl counter`.
func Counter(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "counter", Short: "Show packet counters by verdict"}
	cmd.AddCommand(ListCounters(c), explainCounters(c), ResetCounters(c))
	return cmd
}

// ListCounters makes `ballast ctl counter list`.
func ListCounters(c *ask.Control) *cobra.Command {
	return ask.ListLocal(c, &cobra.Command{Use: "list", Short: "Show packet counters by verdict"}, api.PathCounters,
		func(out *command.Table, counters api.Counters) {
			for _, name := range slices.Sorted(maps.Keys(counters.Counters)) {
				if counters.Counters[name] > 0 || out.Wide {
					out.Row(name, counters.Counters[name])
				}
			}
		})
}

// explainCounters makes `ballast ctl counter explain`, which asks no daemon.
func explainCounters(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "explain [COUNTER...]", Short: "Explain counters: meaning, and when to worry"}
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, e := range verdict.Explanations() {
			names = append(names, e.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return command.Reading(cmd, c.Output, func(_ *cobra.Command, args []string) ([]verdict.Explanation, error) {
		all := verdict.Explanations()
		for _, part := range args {
			if !slices.ContainsFunc(all, func(e verdict.Explanation) bool { return strings.Contains(e.Name, part) }) {
				return nil, command.NotFound("no counter has %q in its name: see `ballast ctl counter explain`", part)
			}
		}
		return slices.DeleteFunc(all, func(e verdict.Explanation) bool {
			named := func(part string) bool { return strings.Contains(e.Name, part) }
			return len(args) > 0 && !slices.ContainsFunc(args, named)
		}), nil
	}, printExplanations)
}

func printExplanations(out *command.Table, explained []verdict.Explanation) {
	for i, e := range explained {
		if i > 0 {
			out.Line("")
		}
		out.Line("%s (%s): %s", e.Name, e.Role, e.Meaning)
		if e.Worry != "" {
			out.Line("  worry when: %s", e.Worry)
		}
	}
}

// ResetCounters makes `ballast ctl counter reset`.
func ResetCounters(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Set all counters of a load balancer to 0",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.ChangeLocal(cmd, http.MethodDelete, api.PathCounters, nil)
		},
	}
	c.CanPlan(cmd)
	return cmd
}
