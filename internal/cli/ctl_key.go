package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
)

func (c *control) keysCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keys", Short: "The epochs whose keys are known, never the keys", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := c.fleet()
			if err != nil {
				return err
			}
			keys, err := fleet.ListKeys(cmd.Context(), &ballastv1.ListKeysRequest{})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(cmd.OutOrStdout(), struct {
					Epochs  []uint32 `json:"epochs"`
					Current uint32   `json:"current"`
				}{nonNil(keys.Epochs), keys.Current})
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, epoch := range keys.Epochs {
				note := ""
				if epoch == keys.Current {
					note = "current"
				}
				fmt.Fprintf(table, "epoch %d\t%s\n", epoch, note)
			}
			return table.Flush()
		},
	}
}

func (c *control) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make and rotate keys",
		Long: `Make and rotate keys. To rotate without breaking a connection, with controllers: "key add"; when every load balancer has it (the
revision in "nodes"), "key use"; and after every connection has been heard of once, "key drop" the old one.

Without controllers add the new key to every load balancer (in its file, or by "key add") and to every agent's file, then switch
"current" in every file (or "key use" on load balancers; agents follow their files alone), and drop the old one last.`,
		Example: `  ballast ctl key generate >> ballast.yaml
  ballast ctl key add
  ballast ctl key use 2
  ballast ctl key drop 1`,
	}
	cmd.AddCommand(generateCommand(), c.keyAddCommand(),
		c.keyAction("use", "Write new cookies with an epoch's key", ballastv1connect.FleetClient.UseKey),
		c.keyAction("drop", "Forget an epoch's key; its cookies are no longer read", ballastv1connect.FleetClient.DropKey))
	return cmd
}

func generateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "generate",
		Short: "Print a keys: section with fresh random keys, for a new fleet's configuration",
		Args:  cobra.NoArgs,
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
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if request.Secret, err = hex.DecodeString(secret); err != nil {
				return fmt.Errorf("secret: it must be 32 hexadecimal digits: make one with `ballast ctl key generate`")
			}
			fleet, err := c.fleet()
			if err != nil {
				return err
			}
			added, err := fleet.AddKey(cmd.Context(), request)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if c.json {
				return writeJSON(out, struct {
					Epoch  uint32 `json:"epoch"`
					Secret string `json:"secret,omitempty"`
				}{added.Epoch, hex.EncodeToString(added.Secret)})
			}
			if len(added.Secret) > 0 {
				_, err = fmt.Fprintf(out, "added; say on every other node: ballast ctl key add --epoch %d --secret %x\n", added.Epoch, added.Secret)
				return err
			}
			_, err = fmt.Fprintf(out, "added; once every load balancer has it (ballast ctl nodes): ballast ctl key use %d\n", added.Epoch)
			return err
		},
	}
	cmd.Flags().Uint32Var(&request.Epoch, "epoch", 0, "epoch (default: the one after the current)")
	cmd.Flags().StringVar(&secret, "secret", "", "the key, 32 hexadecimal digits (default: a random one)")
	return cmd
}

type keyCall func(ballastv1connect.FleetClient, context.Context, *ballastv1.KeyRequest) (*ballastv1.ChangeResponse, error)

func (c *control) keyAction(action, short string, call keyCall) *cobra.Command {
	return &cobra.Command{
		Use:   action + " EPOCH",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			epoch, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return fmt.Errorf("epoch %q is not a number", args[0])
			}
			return c.change(cmd, func(fleet ballastv1connect.FleetClient) (*ballastv1.ChangeResponse, error) {
				return call(fleet, cmd.Context(), &ballastv1.KeyRequest{Epoch: uint32(epoch)})
			})
		},
	}
}
