package ctl

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

func (c *control) keysCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keys", Short: "The epochs whose keys are known, never the keys",
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := c.fleet(cmd)
			if err != nil {
				return err
			}
			keys, err := fleet.ListKeys(cmd.Context(), &ballastv1.ListKeysRequest{})
			if err != nil {
				return err
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), keysJSON(keys))
			}
			return printKeys(cmd.OutOrStdout(), keys)
		},
	}
}

// keyRow is one epoch, as --json prints it.
type keyRow struct {
	Epoch       uint32   `json:"epoch"`
	Connections *uint64  `json:"connections"` // null: no agent has reported
	UseRefused  []string `json:"use_refused,omitempty"`
	DropRefused []string `json:"drop_refused,omitempty"`
}

func keysJSON(keys *ballastv1.ListKeysResponse) any {
	out := struct {
		Epochs       []uint32 `json:"epochs"`
		Current      uint32   `json:"current"`
		Keys         []keyRow `json:"keys"`
		OldestReport *float64 `json:"oldest_report_seconds,omitempty"`
		Uncounted    []string `json:"uncounted,omitempty"`
	}{Epochs: command.NonNil(keys.Epochs), Current: keys.Current, Keys: []keyRow{}, Uncounted: keys.Uncounted}
	if keys.OldestReport != nil {
		seconds := keys.OldestReport.AsDuration().Seconds()
		out.OldestReport = &seconds
	}
	for _, key := range keys.Keys {
		row := keyRow{Epoch: key.Epoch, UseRefused: key.UseRefused, DropRefused: key.DropRefused}
		if keys.OldestReport != nil {
			row.Connections = &key.Connections
		}
		out.Keys = append(out.Keys, row)
	}
	return out
}

func printKeys(out io.Writer, keys *ballastv1.ListKeysResponse) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, key := range keys.Keys {
		note := ""
		if key.Epoch == keys.Current {
			note = "current"
		}
		fmt.Fprintf(table, "epoch %d\t%s", key.Epoch, note)
		if keys.OldestReport != nil {
			fmt.Fprintf(table, "\t%d connections on it", key.Connections)
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if keys.OldestReport != nil {
		fmt.Fprintf(out, "the oldest report of an agent is %v old\n", keys.OldestReport.AsDuration().Round(100*time.Millisecond))
	}
	for _, service := range keys.Uncounted {
		fmt.Fprintf(out, "not counted: connections of service %s (return: through)\n", service)
	}
	for _, key := range keys.Keys {
		for _, why := range key.UseRefused {
			fmt.Fprintf(out, "key use %d waits: %s\n", key.Epoch, why)
		}
		if len(key.UseRefused) > 0 && key.Epoch > keys.Current {
			continue // it is used before it is dropped
		}
		for _, why := range key.DropRefused {
			fmt.Fprintf(out, "key drop %d waits: %s\n", key.Epoch, why)
		}
	}
	return nil
}

func (c *control) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make and rotate keys",
		Long: `Make and rotate keys. With controllers "key rotate" does the whole of it; its steps are "key add", "key use" and "key drop". The last two
are refused while a node lacks the key, or while a living connection's client still echoes the one to be dropped.

Without controllers add the new key to every load balancer (in its file, or by "key add") and to every agent's file, then switch
"current" in every file (or "key use" on load balancers; agents follow their files alone), and drop the old one last, when "status" shows
on no agent a connection that echoes it.`,
		Example: `  ballast ctl key generate >> ballast.yaml
  ballast ctl key rotate
  ballast ctl key add
  ballast ctl key use 2
  ballast ctl key drop 1`,
	}
	cmd.AddCommand(generateCommand(), c.keyRotateCommand(), c.keyAddCommand(),
		c.keyAction("use", "Write new cookies with an epoch's key", ballastv1connect.FleetClient.UseKey),
		c.keyAction("drop", "Forget an epoch's key; its cookies are no longer read", ballastv1connect.FleetClient.DropKey))
	return cmd
}

func generateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "generate",
		Short: "Print a keys: section with fresh random keys, for a new fleet's configuration",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var keys [32]byte
			rand.Read(keys[:])
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "keys:\n  placement: %s\n  current: 1\n  cookie:\n    1: %s\n",
				hex.EncodeToString(keys[:16]), hex.EncodeToString(keys[16:]))
			return err
		},
	}
}

func (c *control) keyAddCommand() *cobra.Command {
	request := &ballastv1.AddKeyRequest{}
	var secret string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Read cookies of a further key",
		Long: `Read cookies of a further key. Controllers tell it to every node. A load balancer that runs by a file prints it instead, for
the other nodes.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if request.Secret, err = hex.DecodeString(secret); err != nil {
				return command.Usage("--secret: it must be 32 hexadecimal digits: make one with `ballast ctl key generate`")
			}
			fleet, err := c.fleet(cmd)
			if err != nil {
				return err
			}
			added, err := fleet.AddKey(cmd.Context(), request)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if c.json {
				return command.WriteJSON(out, struct {
					Epoch  uint32 `json:"epoch"`
					Secret string `json:"secret,omitempty"`
				}{added.Epoch, hex.EncodeToString(added.Secret)})
			}
			if len(added.Secret) > 0 {
				_, err = fmt.Fprintf(out, "added; say on every other node: ballast ctl key add --epoch %d --secret %x\n", added.Epoch, added.Secret)
				return err
			}
			_, err = fmt.Fprintf(out, "added; once every node has it (ballast ctl keys): ballast ctl key use %d\n", added.Epoch)
			return err
		},
	}
	cmd.Flags().Uint32Var(&request.Epoch, "epoch", 0, "epoch (default: the one after the current)")
	cmd.Flags().StringVar(&secret, "secret", "", "the key, 32 hexadecimal digits (default: a random one)")
	return cmd
}

type keyCall func(ballastv1connect.FleetClient, context.Context, *ballastv1.KeyRequest) (*ballastv1.ChangeResponse, error)

func (c *control) keyAction(action, short string, call keyCall) *cobra.Command {
	request := &ballastv1.KeyRequest{}
	cmd := &cobra.Command{
		Use:   action + " EPOCH",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			epoch, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return command.Usage("epoch %q is not a number", args[0])
			}
			request.Epoch = uint32(epoch)
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, _ bool) (*ballastv1.ChangeResponse, error) {
				return call(fleet, cmd.Context(), request)
			})
		},
	}
	cmd.Flags().BoolVar(&request.Force, "force", false, "even if nodes lack the key or connections break")
	return cmd
}
