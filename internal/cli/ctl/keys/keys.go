// Package keys has the commands of ctl about the keys of cookies.
package keys

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// keyList is what is known of all keys, as --json prints it.
type keyList struct {
	Epochs       []uint32 `json:"epochs"`
	Current      uint32   `json:"current"`
	Keys         []keyRow `json:"keys"`
	OldestReport *float64 `json:"oldest_report_seconds,omitempty"`
	Uncounted    []string `json:"uncounted,omitempty"`
}

// keyRow is one epoch, as --json prints it.
type keyRow struct {
	Epoch       uint32   `json:"epoch"`
	Connections *uint64  `json:"connections"` // null: no agent has reported
	UseRefused  []string `json:"use_refused,omitempty"`
	DropRefused []string `json:"drop_refused,omitempty"`
}

// ListKeys makes `ballast ctl key list`.
func ListKeys(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list", Short: "List epochs of keys, never the keys",
	}, c.Output, func(cmd *cobra.Command, _ []string) (keyList, error) {
		known, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListKeys, &ballastv1.ListKeysRequest{})
		if err != nil {
			return keyList{}, err
		}
		list := keyList{Epochs: command.NonNil(known.Epochs), Current: known.Current, Keys: []keyRow{}, Uncounted: known.Uncounted}
		if known.OldestReport != nil {
			list.OldestReport = new(known.OldestReport.AsDuration().Seconds())
		}
		for _, key := range known.Keys {
			row := keyRow{Epoch: key.Epoch, UseRefused: key.UseRefused, DropRefused: key.DropRefused}
			if known.OldestReport != nil {
				row.Connections = &key.Connections
			}
			list.Keys = append(list.Keys, row)
		}
		return list, nil
	}, printKeys)
}

func printKeys(table *command.Table, keys keyList) {
	for _, key := range keys.Keys {
		cells := []any{fmt.Sprint("epoch ", key.Epoch), ""}
		if key.Epoch == keys.Current {
			cells[1] = "current"
		}
		if key.Connections != nil {
			cells = append(cells, model.Counted(*key.Connections, "connection", "connections")+" on it")
		}
		table.Row(cells...)
	}
	if keys.OldestReport != nil {
		table.Line("the oldest report of an agent is %v old", time.Duration(*keys.OldestReport*float64(time.Second)).Round(100*time.Millisecond))
	}
	for _, service := range keys.Uncounted {
		table.Line("not counted: connections of service %s (return: through or affinity: quic)", service)
	}
	for _, key := range keys.Keys {
		for _, why := range key.UseRefused {
			table.Line("key use %d waits: %s", key.Epoch, why)
		}
		if len(key.UseRefused) > 0 && key.Epoch > keys.Current {
			continue // it is used before it is dropped
		}
		for _, why := range key.DropRefused {
			table.Line("key drop %d waits: %s", key.Epoch, why)
		}
	}
}

// Key makes `ballast ctl key`.
func Key(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Manage cookie keys"}
	act := func(method ask.Method[*ballastv1.KeyRequest], use, short string) *cobra.Command {
		request := &ballastv1.KeyRequest{}
		act := ask.Changing(c, &cobra.Command{Use: use, Short: short}, method, func(args []string) (*ballastv1.KeyRequest, error) {
			epoch, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return nil, command.Usage("epoch %q is not a number", args[0])
			}
			request.Epoch = uint32(epoch)
			return request, nil
		})
		act.Flags().BoolVar(&request.Force, "force", false, "even if nodes lack the key or connections break")
		return act
	}
	cmd.AddCommand(ListKeys(c), generate(), rotate(c), add(c),
		act(ballastv1connect.FleetClient.UseKey, "use EPOCH", "Write new cookies with an epoch's key"),
		act(ballastv1connect.FleetClient.DropKey, "drop EPOCH", "Forget an epoch's key; its cookies are no longer read"))
	return cmd
}

func generate() *cobra.Command {
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

// added is what `key add` did, as --json prints it.
type added struct {
	Epoch  uint32 `json:"epoch"`
	Secret string `json:"secret,omitempty"` // only from a load balancer that runs by a file: other nodes must be told
}

func add(c *ask.Control) *cobra.Command {
	request := &ballastv1.AddKeyRequest{}
	var secret string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Read cookies of a further key",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if request.Secret, err = readSecret(cmd, secret); err != nil {
				return err
			}
			request.DryRun = c.DryRun()
			answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.AddKey, request)
			if err != nil {
				return err
			}
			if c.DryRun() {
				return c.PrintOutcome(cmd, ask.Outcome{Changes: answer.Changes, DryRun: true})
			}
			return command.Print(cmd.OutOrStdout(), c.Output, added{answer.Epoch, hex.EncodeToString(answer.Secret)}, printAdded)
		},
	}
	c.CanPlan(cmd)
	cmd.Flags().Uint32Var(&request.Epoch, "epoch", 0, "epoch (default: the one after the current)")
	cmd.Flags().StringVar(&secret, "secret", "", "the key, 32 hexadecimal digits; -: a line of standard input, which no list of processes shows (default: a random one)")
	return cmd
}

func printAdded(out *command.Table, done added) {
	if done.Secret != "" {
		out.Line("added; say on every other node: ballast ctl key add --epoch %d --secret -", done.Epoch)
		out.Line("and give it as input: %s", done.Secret)
		return
	}
	out.Line("added; once every node has it (ballast ctl key list): ballast ctl key use %d", done.Epoch)
}

// readSecret returns the key that --secret gives; empty: it gives none.
func readSecret(cmd *cobra.Command, given string) ([]byte, error) {
	digits := given
	if given == "-" {
		line, err := command.ReadLine(cmd)
		if err != nil && err != io.EOF {
			return nil, err
		}
		digits = strings.TrimSpace(line)
	}
	secret, err := hex.DecodeString(digits)
	if err != nil || given != "" && digits == "" {
		return nil, command.Usage("--secret: it must be 32 hexadecimal digits: make one with `ballast ctl key generate`")
	}
	return secret, nil
}
