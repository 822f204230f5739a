// ballast ctl key rotate: a whole rotation, with its waits and a way back.
package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Implementation constants of a rotation.
const (
	rotatePeriod  = time.Second      // between two looks
	rotateRequest = 15 * time.Second // for a step, which Ctrl-C does not cut in two
	rotateSay     = 10 * time.Second // between two lines, where there is no terminal
)

// A keyRotation goes by what the fleet says at each look: it keeps nothing, so that whoever says it again goes on from there.
type keyRotation struct {
	fleet  ballastv1connect.FleetClient
	abort  bool
	out    io.Writer // nil: says nothing
	live   bool      // out is a terminal
	target uint32    // the epoch that is to be the only one
	other  uint32
	turned bool // target has been seen current
	said   string
	saidAt time.Time
}

func (c *control) keyRotateCommand() *cobra.Command {
	var deadline time.Duration
	r := &keyRotation{}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Rotate to a new key: add, wait, use, wait, drop",
		Long: `Rotate to a new key without breaking a connection: add it; when every load balancer and agent has it, write cookies with it; when no
living connection's client echoes the old one any more, drop the old one. It needs controllers.

Clients take the new cookie with the next data of their server, or with its keepalive. A connection that says nothing and has no
keepalive holds the rotation up until it speaks or ends: "ballast ctl keys" says where such connections are, and ` + "`ballast ctl key drop\nEPOCH --force`" + ` gives them up.

A load balancer or agent that is lost ("ballast ctl nodes") holds it up too, because what it has pinned goes on with the keys that it had:
start it again, or, if it will not come back, take it out of the routers and "ballast ctl node forget NAME".

Ctrl-C and --deadline end the waiting between two steps, where no connection is in danger however long it lasts. Saying it again goes
on; two who say it at once do the same rotation. --abort goes the way back: to the old key, and drops the new one.`,
		Example: `  ballast ctl key rotate
  ballast ctl key rotate --deadline 24h
  ballast ctl key rotate --abort`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := cmp.Or(command.NotNegative("deadline", deadline)); err != nil {
				return err
			}
			if r.fleet, err = c.fleet(cmd); err != nil {
				return err
			}
			if !c.json {
				r.out = cmd.OutOrStdout()
				r.live = command.IsTerminal(r.out)
			}
			ctx := cmd.Context()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, deadline, fmt.Errorf("%v have passed", deadline))
				defer cancel()
			}
			if err := r.run(ctx); err != nil {
				return err
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), struct {
					Epoch   uint32 `json:"epoch"`
					Dropped uint32 `json:"dropped"`
				}{r.target, r.other})
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&r.abort, "abort", false, "go back to the old key and drop the new one")
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "wait at most for `DURATION` (default: as long as it takes)")
	return cmd
}

func (r *keyRotation) run(ctx context.Context) error {
	keys, err := r.begin(ctx)
	for {
		done := false
		if err == nil {
			done, err = r.step(ctx, keys)
		}
		switch {
		case done:
			r.line(fmt.Sprintf("done: epoch %d is the only one", r.target))
			return nil
		case err != nil && ctx.Err() == nil && (r.target == 0 || connect.CodeOf(err) != connect.CodeUnavailable):
			return err
		case err != nil && ctx.Err() == nil:
			r.wait("no controller answers: " + err.Error())
		}
		select {
		case <-time.After(rotatePeriod):
			var now *ballastv1.ListKeysResponse
			if now, err = r.fleet.ListKeys(ctx, &ballastv1.ListKeysRequest{}); err == nil {
				keys = now
			}
		case <-ctx.Done():
			return r.interrupted(context.Cause(ctx), keys)
		}
	}
}

// begin finds out which rotation it is, and makes the new key if there is none under way.
func (r *keyRotation) begin(ctx context.Context) (*ballastv1.ListKeysResponse, error) {
	keys, err := r.fleet.ListKeys(ctx, &ballastv1.ListKeysRequest{})
	switch {
	case err != nil:
		return nil, err
	case keys.Blind != "":
		return nil, fmt.Errorf("rotate keys: %s", keys.Blind)
	case len(keys.Epochs) == 0:
		return nil, errors.New("rotate keys: there are none yet: they come with the first service")
	case len(keys.Epochs) == 1 && r.abort:
		return nil, fmt.Errorf("abort a rotation: there is none: epoch %d is the only one", keys.Current)
	case len(keys.Epochs) == 1:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rotateRequest)
		defer cancel()
		_, err := r.fleet.AddKey(ctx, &ballastv1.AddKeyRequest{Epoch: keys.Current + 1})
		if err != nil && connect.CodeOf(err) != connect.CodeAlreadyExists { // somebody else was faster: it is the same rotation
			return nil, err
		}
		r.line(fmt.Sprintf("added the key of epoch %d", keys.Current+1))
		if keys, err = r.fleet.ListKeys(ctx, &ballastv1.ListKeysRequest{}); err != nil {
			return nil, err
		}
	default:
		r.line(fmt.Sprintf("going on: epochs %d and %d are known, %d is current", keys.Epochs[0], keys.Epochs[1], keys.Current))
	}
	r.target, r.other = slices.Max(keys.Epochs), slices.Min(keys.Epochs)
	if r.abort {
		r.target, r.other = r.other, r.target
	}
	return keys, nil
}

// step does what can be done now.
func (r *keyRotation) step(ctx context.Context, keys *ballastv1.ListKeysResponse) (done bool, err error) {
	current := keys.Current == r.target
	switch {
	case !slices.Contains(keys.Epochs, r.target):
		return false, fmt.Errorf("rotate keys: somebody else has dropped epoch %d: see `ballast ctl keys`", r.target)
	case current && !slices.Contains(keys.Epochs, r.other):
		return true, nil
	case !current && r.turned:
		return false, fmt.Errorf("rotate keys: somebody else has made epoch %d current again: see `ballast ctl keys`", keys.Current)
	}
	r.turned = r.turned || current
	request, ask, did := &ballastv1.KeyRequest{Epoch: r.target}, r.fleet.UseKey, "cookies are written with epoch %d now"
	if current {
		request, ask, did = &ballastv1.KeyRequest{Epoch: r.other}, r.fleet.DropKey, "dropped the key of epoch %d"
	}
	if refused := refusedFor(keys, request.Epoch, current); len(refused) > 0 {
		r.wait(strings.Join(refused, "; "))
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rotateRequest)
	defer cancel()
	_, err = ask(ctx, request)
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition, connect.CodeNotFound: // it has just changed: look again
		return false, nil
	}
	if err != nil {
		return false, err
	}
	r.turned = true
	r.line(fmt.Sprintf(did, request.Epoch))
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
func (r *keyRotation) interrupted(why error, keys *ballastv1.ListKeysResponse) error {
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
	r.line("")
	return fmt.Errorf("rotate keys: %w: epoch %d is current, %d is read too, and both may stay so: it waits for: %s: go on with `ballast ctl key rotate%s`",
		why, keys.Current, r.target+r.other-keys.Current, waits, abort)
}

// wait says what is waited for.
func (r *keyRotation) wait(text string) {
	if r.out == nil || text == r.said && !r.live || !r.live && time.Since(r.saidAt) < rotateSay {
		return
	}
	r.said, r.saidAt = text, time.Now()
	if r.live {
		command.Tell(r.out, command.EraseLine)
		fmt.Fprintf(r.out, "waiting: %s", text)
		return
	}
	fmt.Fprintf(r.out, "waiting: %s\n", text)
}

// line says what has happened, in a line of its own.
func (r *keyRotation) line(text string) {
	if r.out == nil {
		return
	}
	if r.live && r.said != "" {
		command.Tell(r.out, command.EraseLine)
	}
	r.said = ""
	if text != "" {
		fmt.Fprintln(r.out, text)
	}
}
