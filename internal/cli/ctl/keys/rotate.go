// ballast ctl key rotate: a whole rotation, with its waits and a way back.
package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// Implementation constants of a rotation.
const (
	rotatePeriod = time.Second      // between two looks
	rotateSay    = 10 * time.Second // between two lines, where there is no terminal
)

// A rotation goes by what the fleet says at each look: it keeps nothing, so that whoever says it again goes on from there.
type rotation struct {
	fleet  ballastv1connect.FleetClient
	abort  bool
	dryRun bool     // the next step is only told
	would  []string // of a dry run: what it does
	line   *command.Line
	target uint32 // the epoch that is to be the only one
	other  uint32
	turned bool // target has been seen current
}

// rotated is what a rotation did, as --json prints it.
type rotated struct {
	Epoch   uint32 `json:"epoch"`
	Dropped uint32 `json:"dropped"`
}

func rotate(c *ask.Control) *cobra.Command {
	var deadline time.Duration
	r := &rotation{line: command.NewLine(nil, 0)}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Rotate to a new key: add, wait, use, wait, drop",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := command.NotNegative("deadline", deadline); err != nil {
				return err
			}
			if r.fleet, err = c.Fleet(cmd); err != nil {
				return err
			}
			if r.dryRun = c.DryRun(); r.dryRun {
				return r.plan(cmd, c)
			}
			if !c.Structured() {
				r.line = command.NewLine(cmd.OutOrStdout(), rotateSay)
			}
			ctx := cmd.Context()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, deadline, fmt.Errorf("%v have passed", deadline))
				defer cancel()
			}
			if err := r.run(ctx); err != nil || !c.Structured() {
				return err
			}
			return c.Write(cmd.OutOrStdout(), rotated{r.target, r.other})
		},
	}
	c.CanPlan(cmd)
	cmd.Flags().BoolVar(&r.abort, "abort", false, "go back to the old key and drop the new one")
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "wait at most for `DURATION` (default: as long as it takes)")
	return cmd
}

func (r *rotation) run(ctx context.Context) error {
	var keys *ballastv1.ListKeysResponse
	done, err := command.Every(ctx, rotatePeriod, func() (done bool, err error) {
		now, err := r.look(ctx)
		if err == nil {
			keys = now
			done, err = r.step(ctx, keys)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return false, nil
		case err != nil && r.target != 0 && connect.CodeOf(err) == connect.CodeUnavailable:
			r.line.Renew("waiting: no controller answers: " + err.Error())
			return false, nil
		}
		return done, err
	})
	switch {
	case done:
		r.line.Say(fmt.Sprintf("done: epoch %d is the only one", r.target))
		return nil
	case err != nil:
		return err
	}
	return r.interrupted(context.Cause(ctx), keys)
}

// plan says what the next step does, or what it waits for.
func (r *rotation) plan(cmd *cobra.Command, c *ask.Control) error {
	keys, err := r.look(cmd.Context())
	if err == nil && r.target != 0 {
		_, err = r.step(cmd.Context(), keys)
	}
	if err != nil {
		return err
	}
	done := ask.Outcome{Changes: command.NonNil(r.would), DryRun: true}
	if len(r.would) == 0 {
		done.Notes = []string{r.interrupted(errors.New("the next step does not come yet"), keys).Error()}
	}
	return c.PrintOutcome(cmd, done)
}

// look asks how things stand; the first time it finds out which rotation it is, and makes the new key if there is none under way.
func (r *rotation) look(ctx context.Context) (*ballastv1.ListKeysResponse, error) {
	keys, err := r.fleet.ListKeys(ctx, &ballastv1.ListKeysRequest{})
	switch {
	case err != nil || r.target != 0:
		return keys, err
	case keys.Blind != "":
		return nil, fmt.Errorf("rotate keys: %s", keys.Blind)
	case len(keys.Epochs) == 0:
		return nil, errors.New("rotate keys: there are none yet: they come with the first service")
	case len(keys.Epochs) == 1 && r.abort:
		return nil, fmt.Errorf("abort a rotation: there is none: epoch %d is the only one", keys.Current)
	case len(keys.Epochs) == 1:
		ctx, cancel := ask.Uncut(ctx)
		defer cancel()
		added, err := r.fleet.AddKey(ctx, &ballastv1.AddKeyRequest{Epoch: keys.Current + 1, DryRun: r.dryRun})
		if err != nil && connect.CodeOf(err) != connect.CodeAlreadyExists { // somebody else was faster: it is the same rotation
			return nil, err
		}
		if r.dryRun {
			r.would = added.GetChanges()
			return keys, nil
		}
		r.line.Say(fmt.Sprintf("added the key of epoch %d", keys.Current+1))
		if keys, err = r.fleet.ListKeys(ctx, &ballastv1.ListKeysRequest{}); err != nil {
			return nil, err
		}
	default:
		r.line.Say(fmt.Sprintf("going on: epochs %d and %d are known, %d is current", keys.Epochs[0], keys.Epochs[1], keys.Current))
	}
	r.target, r.other = slices.Max(keys.Epochs), slices.Min(keys.Epochs)
	if r.abort {
		r.target, r.other = r.other, r.target
	}
	return keys, nil
}

// step does what can be done now.
func (r *rotation) step(ctx context.Context, keys *ballastv1.ListKeysResponse) (done bool, err error) {
	current := keys.Current == r.target
	switch {
	case !slices.Contains(keys.Epochs, r.target):
		return false, fmt.Errorf("rotate keys: another request has dropped epoch %d: see `ballast ctl key list`", r.target)
	case current && !slices.Contains(keys.Epochs, r.other):
		return true, nil
	case !current && r.turned:
		return false, fmt.Errorf("rotate keys: another request has made epoch %d current again: see `ballast ctl key list`", keys.Current)
	}
	r.turned = r.turned || current
	request, order, did := &ballastv1.KeyRequest{Epoch: r.target, DryRun: r.dryRun}, r.fleet.UseKey, "cookies are written with epoch %d now"
	if current {
		request, order, did = &ballastv1.KeyRequest{Epoch: r.other, DryRun: r.dryRun}, r.fleet.DropKey, "dropped the key of epoch %d"
	}
	if refused := refusedFor(keys, request.Epoch, current); len(refused) > 0 {
		r.line.Renew("waiting: " + strings.Join(refused, "; "))
		return false, nil
	}
	ctx, cancel := ask.Uncut(ctx)
	defer cancel()
	answer, err := order(ctx, request)
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition, connect.CodeNotFound: // it has just changed: look again
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if r.dryRun {
		r.would = answer.Changes
		return true, nil
	}
	r.turned = true
	r.line.Say(fmt.Sprintf(did, request.Epoch))
	return current, nil
}

// refusedFor says why an epoch's key would not be dropped, or else used, now.
func refusedFor(keys *ballastv1.ListKeysResponse, epoch uint32, drop bool) []string {
	for _, key := range keys.Keys {
		if key.Epoch == epoch && drop {
			return key.DropRefused
		} else if key.Epoch == epoch {
			return key.UseRefused
		}
	}
	return nil
}

// interrupted says where the rotation stands and how to go on.
func (r *rotation) interrupted(why error, keys *ballastv1.ListKeysResponse) error {
	if keys == nil || r.target == 0 {
		return why
	}
	waits := strings.Join(refusedFor(keys, r.other, keys.Current == r.target), "; ")
	if keys.Current != r.target {
		waits = strings.Join(refusedFor(keys, r.target, false), "; ")
	}
	if waits == "" {
		waits = "nothing"
	}
	abort := ""
	if r.abort {
		abort = " --abort"
	}
	r.line.Say("")
	return fmt.Errorf("rotate keys: %w: epoch %d is current, %d is read too, and both may stay so: it waits for: %s: go on with `ballast ctl key rotate%s`",
		why, keys.Current, r.target+r.other-keys.Current, waits, abort)
}
