package cli

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// control is what all ctl commands share.
type control struct {
	instance, runDir, socket string
	json                     bool
}

func (c *control) client() *api.Client {
	if c.socket != "" {
		return api.NewClient(c.socket)
	}
	return api.NewClient(api.SocketPath(c.runDir, c.instance))
}

func ctlCommand() *cobra.Command {
	c := &control{}
	cmd := &cobra.Command{
		Use:   "ctl",
		Short: "Look at a running daemon and change what it does",
		Long: `Look at a running daemon and change what it does, over its local socket.

Commands named by a noun read; those named by a noun and a verb change. Changes take effect at once, survive restarts of the
daemon, and stay until somebody changes the same thing again, here or in the configuration file: see
` + "`ballast ctl config diff`" + ` for what differs from the file and ` + "`ballast ctl config reset`" + ` to go back to it.
They are of this node alone: say the same to the other nodes.`,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&c.instance, "instance", "default", "name of the daemon's instance")
	flags.StringVar(&c.runDir, "run-dir", "/run/ballast", "directory of sockets")
	flags.StringVar(&c.socket, "socket", "", "path of the daemon's socket, instead of --instance")
	flags.BoolVar(&c.json, "json", false, "print JSON")
	cmd.AddCommand(c.statusCommand(), c.servicesCommand(), c.serversCommand(), c.countersCommands(), c.keysCommand(), c.metricsCommand(),
		c.serviceCommand(), c.serverCommand(), c.keyCommand(), c.configCommand(), c.traceCommand())
	return cmd
}

// changed prints what a change did.
func (c *control) changed(cmd *cobra.Command, answer *api.Changed, err error) error {
	if err != nil {
		return err
	}
	if c.json {
		return writeJSON(cmd.OutOrStdout(), answer)
	}
	if len(answer.Changes) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing changed")
	}
	for _, line := range answer.Changes {
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
	return nil
}

func (c *control) post(cmd *cobra.Command, path string, body any) error {
	var answer api.Changed
	err := c.client().Post(cmd.Context(), path, body, &answer)
	return c.changed(cmd, &answer, err)
}

// route fills the {names} of a path in order.
func route(pattern string, values ...string) string {
	for _, value := range values {
		from, to := strings.IndexByte(pattern, '{'), strings.IndexByte(pattern, '}')
		pattern = pattern[:from] + value + pattern[to+1:]
	}
	return pattern
}

func (c *control) serverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "Add, drain, remove or weigh servers"}
	cmd.AddCommand(c.serverAddCommand(),
		c.serverAction("drain", "Give a server no new connections; those it has stay"),
		c.serverAction("undrain", "Give a drained server new connections again"),
		c.serverAction("forget", "Give up a removed server at once: connections it still has break, its id is free"),
		&cobra.Command{
			Use:   "remove SERVICE SERVER",
			Short: "Remove a server; the connections it has stay until they end",
			Args:  cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				var answer api.Changed
				err := c.client().Do(cmd.Context(), http.MethodDelete, route(api.PathServer, args...), nil, &answer)
				return c.changed(cmd, &answer, err)
			},
		},
		&cobra.Command{
			Use:   "weight SERVICE SERVER WEIGHT",
			Short: "Change a server's weight (0: no new connections)",
			Args:  cobra.ExactArgs(3),
			RunE: func(cmd *cobra.Command, args []string) error {
				weight, err := strconv.ParseUint(args[2], 10, 16)
				if err != nil {
					return fmt.Errorf("weight %s: use a number from 0 to %d", args[2], model.MaxWeight)
				}
				return c.post(cmd, route(api.PathServerAction, args[0], args[1], "weight"), api.Weight{Weight: uint16(weight)})
			},
		})
	return cmd
}

func (c *control) serverAction(action, short string) *cobra.Command {
	return &cobra.Command{
		Use:   action + " SERVICE SERVER",
		Short: short,
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.post(cmd, route(api.PathServerAction, args[0], args[1], action), nil)
		},
	}
}

func (c *control) serverAddCommand() *cobra.Command {
	server := model.NewServer()
	weight := uint16(1)
	cmd := &cobra.Command{
		Use:   "add SERVICE ADDRESS",
		Short: "Add a server",
		Long: `Add a server. Without --id it gets the next id that no server of the service has or had lately; the id is printed,
and must be the same on every load balancer and in the server's own agent file.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := netip.ParseAddr(args[1])
			if err != nil {
				return fmt.Errorf("address %s: %w", args[1], err)
			}
			server.Address, server.Weight = address, weight
			var answer api.Changed
			err = c.client().Post(cmd.Context(), route(api.PathServers, args[0]), server, &answer)
			return c.changed(cmd, &answer, err)
		},
	}
	cmd.Flags().StringVar(&server.Name, "name", "", "name (default: the address)")
	cmd.Flags().Uint16Var(&server.ID, "id", 0, "id (default: the next free one)")
	cmd.Flags().Uint16Var(&server.Port, "port", 0, "port of the server (forward: nat; default: the port that the client asked for)")
	cmd.Flags().Uint16Var(&weight, "weight", 1, "weight, 0 to 256")
	return cmd
}

func (c *control) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make and rotate keys",
		Long: `Make and rotate keys. To rotate without breaking a connection: add the new key to every load balancer (in its file, or by
"key add") and to every agent's file, then switch "current" in every file (or "key use" on load balancers; agents follow their
files alone), and after every connection has been heard of once, drop the old one.`,
	}
	cmd.AddCommand(generateCommand(), c.keyAddCommand(),
		c.keyAction("use", "Write new cookies with an epoch's key"), c.keyAction("drop", "Forget an epoch's key; its cookies are no longer read"))
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
	var key api.NewKey
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Read cookies of a further key; print it for the other nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var added api.KeyAdded
			if err := c.client().Post(cmd.Context(), api.PathKeys, key, &added); err != nil {
				return err
			}
			if c.json {
				return writeJSON(cmd.OutOrStdout(), added)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "added; say on every other node: ballast ctl key add --epoch %d --secret %s\n", added.Epoch, added.Secret)
			return err
		},
	}
	cmd.Flags().Uint32Var(&key.Epoch, "epoch", 0, "epoch (default: the one after the current)")
	cmd.Flags().StringVar(&key.Secret, "secret", "", "the key, 32 hexadecimal digits (default: a random one)")
	return cmd
}

func (c *control) keyAction(action, short string) *cobra.Command {
	return &cobra.Command{
		Use:   action + " EPOCH",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.post(cmd, route(api.PathKeyAction, args[0], action), nil)
		},
	}
}

func (c *control) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Compare what runs with the configuration file"}
	action := func(name, short string) *cobra.Command {
		return &cobra.Command{
			Use: name, Short: short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.post(cmd, route(api.PathConfigAction, name), nil)
			},
		}
	}
	cmd.AddCommand(action("reload", "Read the file again now"), action("reset", "Undo what ctl changed: the file rules"), &cobra.Command{
		Use: "diff", Short: "Show what ctl changed since", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.Changed
			err := c.client().Get(cmd.Context(), api.PathConfigDiff, &answer)
			return c.changed(cmd, &answer, err)
		},
	})
	return cmd
}
