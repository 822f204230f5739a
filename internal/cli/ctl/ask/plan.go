// Dry runs of ctl commands: whoever would carry a change out says what it would do.
package ask

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
)

// ChangesWouldBeMade is the exit status of a dry run that found differences.
const ChangesWouldBeMade command.ExitStatus = 2

// CanPlan gives commands that change something the flag that has them only say what they would do.
func (c *Control) CanPlan(commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.Flags().BoolVar(&c.dryRun, command.DryRunFlag, false, "show what would change, and change nothing")
	}
}

// DryRun reports whether a command is only to say what it would do.
func (c *Control) DryRun() bool { return c.dryRun }

// planned prints what a dry run found.
func (c *Control) planned(cmd *cobra.Command, done Outcome) error {
	if c.Structured() {
		if err := c.Write(cmd.OutOrStdout(), done); err != nil {
			return err
		}
	} else {
		ShowPlan(cmd, done)
	}
	if len(done.Changes) > 0 {
		return ChangesWouldBeMade
	}
	return nil
}

// ShowPlan shows what a change would do, and what it would harm.
func ShowPlan(cmd *cobra.Command, done Outcome) {
	out := cmd.OutOrStdout()
	ShowChanges(out, done.Changes)
	for _, line := range done.Live {
		fmt.Fprintln(out, "live:", line)
	}
	for _, line := range done.Notes {
		fmt.Fprintln(out, line)
	}
	Warn(cmd, done.Warnings...)
}

// ShowChanges shows changes with what they do: + adds something, - removes it, ~ changes it.
func ShowChanges(out io.Writer, changes []string) {
	if len(changes) == 0 {
		fmt.Fprintln(out, "no changes")
	}
	for _, line := range changes {
		fmt.Fprintln(out, sign(line), line)
	}
}

// whatChanged takes the thing off a line of fleet.Diff, and of what is like it.
var whatChanged = regexp.MustCompile(`^(?:service \S+: (?:server \S+: )?|node \S+: |keys: cookie epoch \d+ |controller \S+: )(.*)$`)

func sign(line string) string {
	found := whatChanged.FindStringSubmatch(line)
	switch {
	case found == nil:
		return "~"
	case slices.Contains([]string{"removed", "forgotten"}, found[1]):
		return "-"
	case found[1] == "added" || strings.HasPrefix(found[1], "added with "):
		return "+"
	}
	return "~"
}
