// What ctl commands change: what that harms is shown first, and what was done afterwards.
package ask

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// A Method of the fleet API changes something.
type Method[R proto.Message] func(ballastv1connect.FleetClient, context.Context, R) (*ballastv1.ChangeResponse, error)

// Changing completes a command that makes one request.
func Changing[R proto.Message](c *Control, cmd *cobra.Command, method Method[R], request func(args []string) (R, error)) *cobra.Command {
	c.CanPlan(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := request(args)
		if err != nil {
			return err
		}
		done, err := Change(c, cmd, method, r)
		if err != nil {
			return err
		}
		return c.PrintOutcome(cmd, done)
	}
	return cmd
}

// Change asks for a change of the fleet. What harms clients is done once somebody has said that it is meant.
func Change[R proto.Message](c *Control, cmd *cobra.Command, method Method[R], request R) (done Outcome, err error) {
	fleet, err := c.Fleet(cmd)
	if err != nil {
		return done, err
	}
	return Meant(c, cmd, request, func(ctx context.Context, request R) (*ballastv1.ChangeResponse, error) {
		return method(fleet, ctx, request)
	})
}

// Meant carries out what says itself that it may do harm, once somebody has said that it is meant. In a dry run nobody is asked.
func Meant[R proto.Message](c *Control, cmd *cobra.Command, request R, method func(context.Context, R) (*ballastv1.ChangeResponse, error)) (done Outcome, err error) {
	if c.yes {
		say(request, "force")
	}
	if c.dryRun && !say(request, "dry_run") {
		panic("ctl: a dry run of " + string(request.ProtoReflect().Descriptor().FullName()))
	}
	answer, err := method(cmd.Context(), request)
	if warnings := api.WarningsOf(err); len(warnings) > 0 {
		Warn(cmd, warnings...)
		if err := c.Confirm(cmd, "go on", "say --yes if that is meant"); err != nil {
			return done, err
		}
		say(request, "force")
		answer, err = method(cmd.Context(), request)
	}
	if err != nil {
		return done, err
	}
	done = Outcome{Changes: command.NonNil(answer.Changes), Revision: answer.Revision, ID: answer.Id, Notes: answer.Notes}
	if c.dryRun {
		done.DryRun, done.Warnings, done.Live = true, answer.Warnings, answer.Live
	}
	return done, nil
}

// say sets a field of a request, and reports whether it has it: what it harms is meant, or nothing is to be changed.
func say(request proto.Message, field protoreflect.Name) bool {
	message := request.ProtoReflect()
	found := message.Descriptor().Fields().ByName(field)
	if found != nil {
		message.Set(found, protoreflect.ValueOfBool(true))
	}
	return found != nil
}

// MayHarm gives commands that may harm clients, or that cannot be taken back, the flag that says that it is meant.
func (c *Control) MayHarm(commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask, also where it harms clients or cannot be taken back")
	}
}

// ChangeLocal asks the daemon of this machine for a change, or for what was changed, and prints it.
func (c *Control) ChangeLocal(cmd *cobra.Command, method, path string, body any) error {
	client, err := c.Local()
	if err != nil {
		return err
	}
	if c.dryRun {
		path = api.DryRun(path)
	}
	var answer api.Changed
	if err := client.Do(cmd.Context(), method, path, body, &answer); err != nil {
		return err
	}
	return c.PrintOutcome(cmd, Outcome{Changes: command.NonNil(answer.Changes), DryRun: c.dryRun, Warnings: answer.Warnings, Live: answer.Live})
}

// Outcome is what a change did, or would do, as --json prints it.
type Outcome struct {
	Changes  []string `json:"changes"`
	Revision uint64   `json:"revision,omitempty"`
	ID       uint32   `json:"id,omitempty"`    // of a server or node that was added
	Notes    []string `json:"notes,omitempty"` // why it has less effect than it seems; of apply, names that nobody has joined by
	DryRun   bool     `json:"dry_run,omitempty"`
	Warnings []string `json:"warnings,omitempty"` // of a dry run: what of it harms clients or cannot be taken back
	Live     []string `json:"live,omitempty"`     // of a dry run: what becomes of connections that live
}

// PrintOutcome says what a change did, or would do.
func (c *Control) PrintOutcome(cmd *cobra.Command, done Outcome) error {
	if done.DryRun {
		return c.planned(cmd, done)
	}
	return command.Print(cmd.OutOrStdout(), c.Output, done, func(out *command.Table, done Outcome) {
		if len(done.Changes) == 0 {
			out.Line("nothing changed")
		}
		for _, line := range slices.Concat(done.Changes, done.Notes) {
			out.Line("%s", line)
		}
	})
}

// Warn shows what a change harms.
func Warn(cmd *cobra.Command, warnings ...string) { command.Warn(cmd, warnings...) }

// Confirm asks whether to go on, where there is somebody to ask.
func (c *Control) Confirm(cmd *cobra.Command, question, remedy string) error {
	if c.Structured() {
		return command.Unasked(remedy)
	}
	return command.Confirm(cmd, question, remedy)
}

// orderTime is how long an order may take.
const orderTime = 15 * time.Second

// Uncut is the context of an order that Ctrl-C does not cut in two.
func Uncut(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), orderTime)
}
