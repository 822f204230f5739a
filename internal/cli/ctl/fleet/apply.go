// ctl apply: the fleet becomes what a file says.
package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/config"
)

// application is one `ballast ctl apply`.
type application struct {
	*ask.Control
	file           string
	yes, forceKeys bool
	allowRemove    bool
}

// Apply makes `ballast ctl apply`.
func Apply(c *ask.Control) *cobra.Command {
	a := application{Control: c}
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the fleet what a file says, after showing what that changes",
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.run(cmd) },
	}
	cmd.Flags().StringVarP(&a.file, "file", "f", "", "configuration file; - is the standard input")
	c.CanPlan(cmd)
	cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask, and let a file without any service remove them all")
	cmd.Flags().BoolVar(&a.forceKeys, "force-keys", false, "let cookie keys come, go or be turned back even if connections break; `placement` and the key of an epoch stay")
	cmd.Flags().BoolVar(&a.allowRemove, "allow-remove", false, "let services go whose connections live, and more than a third of a service's servers")
	command.Require(cmd, "file")
	return cmd
}

// applied is what --json prints.
type applied struct {
	ask.Outcome
	Warnings []string `json:"warnings"`       // in place of those of Outcome
	Kept     []string `json:"kept,omitempty"` // what was set since the file said the same of it
	Applied  bool     `json:"applied"`
	KeyRisks []string `json:"key_risks,omitempty"` // why changes of keys need --force-keys
	Removals []string `json:"removals,omitempty"`  // what needs --allow-remove
}

func (a *application) run(cmd *cobra.Command) error {
	draft, err := a.read(cmd)
	if err != nil {
		return err
	}
	if len(draft.Fleet.Services) == 0 && !a.yes && !a.DryRun() {
		return fmt.Errorf("%s has no services, which would remove every one there is: if that is meant, say --yes", a.file)
	}
	if len(draft.Fleet.TunnelsFrom) > 0 {
		ask.Warn(cmd, "tunnels_from is for agents that run by a file, and is left out: controllers know the load balancers")
	}
	request := api.FleetToProto(&draft.Fleet)
	if draft.HasKeys {
		request.Keys = api.KeysToProto(&draft.Fleet.Keys)
	}
	return a.apply(cmd, request, func(err error) error { return a.place(draft, err) })
}

// apply shows what a request changes, and carries it out once somebody has said that it is meant. place completes what is said of a request that
// makes no sense.
func (a *application) apply(cmd *cobra.Command, request *ballastv1.ApplyRequest, place func(error) error) error {
	fleet, err := a.Fleet(cmd)
	if err != nil {
		return err
	}
	request.DryRun = true
	answer, err := fleet.Apply(cmd.Context(), request)
	if err != nil {
		return place(err)
	}
	done := applied{Outcome: ask.Outcome{Changes: command.NonNil(answer.Changes), Revision: answer.Revision, Live: answer.Live, Notes: answer.Notes}, Warnings: command.NonNil(answer.Warnings), Kept: answer.Kept, KeyRisks: answer.KeyRisks, Removals: answer.Removals}
	out := cmd.OutOrStdout()
	if !a.Structured() {
		ask.ShowPlan(cmd, done.Outcome)
		for _, line := range done.Kept {
			fmt.Fprintf(out, "kept, as it was set: %s\n", line)
		}
		ask.Warn(cmd, slices.Concat(done.Warnings, done.Removals, done.KeyRisks)...)
	}
	if len(done.Removals) > 0 && !a.DryRun() && !a.allowRemove && !request.Exact {
		return fmt.Errorf("nothing was changed: is %s whole? %s: if that is meant, say --allow-remove", a.file, strings.Join(done.Removals, "; "))
	}
	if len(done.KeyRisks) > 0 && !a.DryRun() && !a.forceKeys {
		if request.Keys == nil {
			return errors.New("nothing was changed: new keys would break connections; --force-keys makes them")
		}
		return errors.New("nothing was changed: the keys of the file would break connections: take keys: out of it, or say --force-keys")
	}
	if !a.DryRun() {
		changes := len(done.Changes) > 0
		if changes && !a.yes {
			if err := a.Confirm(cmd, "apply", "say --yes, or --dry-run to look only"); err != nil {
				return err
			}
		}
		request.DryRun, request.Confirmed, request.Unchanged, request.Force, request.ForceKeys = false, done.Changes, !changes, len(done.Warnings) > 0, a.forceKeys
		request.AllowRemove = a.allowRemove || request.Exact // people have asked for a revision by its number
		if answer, err = fleet.Apply(cmd.Context(), request); err != nil {
			return place(err)
		}
		done.Revision, done.Applied = answer.Revision, changes
	}
	switch {
	case a.Structured():
		err = a.Write(out, done)
	case done.Applied:
		_, err = fmt.Fprintf(out, "applied, revision %d\n", done.Revision)
	}
	if err == nil && a.DryRun() && len(done.Changes) > 0 {
		return ask.ChangesWouldBeMade
	}
	return err
}

func (a *application) read(cmd *cobra.Command) (*config.Draft, error) {
	text, err := command.ReadUpTo(cmd, a.file, config.MaxBytes+1)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if a.file == "-" {
		a.file = "standard input"
	}
	return config.ParseDraft(a.file, text)
}

// place puts the line of the file in front of every objection to it.
func (a *application) place(draft *config.Draft, err error) error {
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		return err
	}
	var lines []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		path, _, _ := strings.Cut(line, ": ")
		lines = append(lines, fmt.Errorf("%s:%d: %s", a.file, draft.Line(path), line))
	}
	return errors.Join(lines...)
}
