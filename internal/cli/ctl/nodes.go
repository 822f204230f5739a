package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// nodeRow is one node, as --json prints it.
type nodeRow struct {
	Role         string      `json:"role"`
	Name         string      `json:"name"`
	Address      string      `json:"address,omitempty"`
	Version      string      `json:"version"`
	Ready        string      `json:"ready,omitempty"` // yes, no, lost
	Since        time.Time   `json:"since,omitzero"`
	LastSeen     time.Time   `json:"last_seen,omitzero"`
	Revision     uint64      `json:"revision,omitempty"`
	Services     []string    `json:"services,omitempty"`
	Epochs       []uint32    `json:"epochs,omitempty"` // of the keys that it has
	Epoch        uint32      `json:"epoch,omitempty"`  // of these, the one that is written
	Problems     []string    `json:"problems,omitempty"`
	Tiered       *model.Node `json:"node,omitempty"` // of load balancers with a tier: as configured
	Health       string      `json:"health,omitempty"`
	HealthDetail string      `json:"health_detail,omitempty"`
}

func (c *control) nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "nodes", Short: "Controllers, load balancers and agents that are connected, or were",
		Long: `Controllers, load balancers and agents that are connected, and those that were within a day, as long as the controller that is asked has
run: "node forget" takes one that does not come back off the list. Where there are two tiers, load balancers that have one are listed
whether they are connected or not.

  READY      yes; no: it cannot do its work, PROBLEMS says why; lost: it is not connected any more, or its lease has ended;
             -: nothing has been heard of it, it is of an older version, or another controller, and the one that is asked is cut off
             from the store or that has no quorum
  SINCE      when it joined the controller that is asked
  LAST SEEN  of one that is lost
  REVISION   of the fleet that a load balancer's tables say; of the controller that is asked, the newest. After a controller has
             started, its own and that of the nodes may be ahead of what other controllers say, until the next change: it
             counts what else was written to the store
  KEYS       epochs of the cookie keys that a node has, a star after the one that it writes; -: not known, or a load balancer
             that does not have the keys as they are now
  LEADS      how many services a controller leads
  TIER, ID, STATE, HEALTH  of load balancers that have a tier: as configured, and as checked
  PROBLEMS   what is not as wanted, as the node itself tells it; a load balancer that is behind the fleet`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := c.fleet(cmd)
			if err != nil {
				return err
			}
			answer, err := fleet.ListNodes(cmd.Context(), &ballastv1.ListNodesRequest{})
			if err != nil {
				return err
			}
			rows := []nodeRow{}
			for _, n := range answer.Nodes {
				row, err := nodeRowOf(n)
				if err != nil {
					return err
				}
				rows = append(rows, row)
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), rows)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			printNodes(table, rows)
			return table.Flush()
		},
	}
}

func nodeRowOf(n *ballastv1.NodeStatus) (nodeRow, error) {
	row := nodeRow{Role: n.Role, Name: n.Name, Address: n.Address, Version: n.Version, Revision: n.Revision, Services: n.Services, Problems: n.Problems,
		Epochs: n.Epochs, Epoch: n.Epoch, Health: n.Health, HealthDetail: n.HealthDetail, Ready: n.Ready}
	if n.LastSeen != nil {
		row.LastSeen = n.LastSeen.AsTime()
	}
	if n.Since != nil {
		row.Since = n.Since.AsTime()
	}
	if n.Node != nil {
		node, err := api.NodeFromProto(n.Node)
		if err != nil {
			return row, err
		}
		row.Tiered = &node
	}
	return row, nil
}

func printNodes(out io.Writer, rows []nodeRow) {
	tiers := slices.ContainsFunc(rows, func(n nodeRow) bool { return n.Tiered != nil })
	fmt.Fprint(out, "ROLE\tNAME\tADDRESS\tVERSION\tREADY\tSINCE\tLAST SEEN\tREVISION\tKEYS\tLEADS")
	if tiers {
		fmt.Fprint(out, "\tTIER\tID\tSTATE\tHEALTH")
	}
	fmt.Fprintln(out, "\tPROBLEMS")
	for i := range rows {
		n := &rows[i]
		since, seen, revision := "-", "-", "-"
		if n.Ready == "lost" {
			seen = n.LastSeen.Format(time.RFC3339)
		}
		if !n.Since.IsZero() {
			since = n.Since.Format(time.RFC3339)
		}
		if n.Revision != 0 {
			revision = fmt.Sprint(n.Revision)
		}
		leads := "-"
		if n.Role == "controller" {
			leads = command.Counted(len(n.Services), "service")
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", n.Role, n.Name, n.Address, n.Version, command.OrDash(n.Ready), since, seen, revision, n.keys(), leads)
		if tiers {
			fmt.Fprintf(out, "\t%s", n.tier())
		}
		fmt.Fprintf(out, "\t%s\n", strings.Join(n.Problems, "; "))
	}
}

// keys are the epochs that it has.
func (n *nodeRow) keys() string {
	epochs := make([]string, len(n.Epochs))
	for i, epoch := range n.Epochs {
		if epochs[i] = fmt.Sprint(epoch); epoch == n.Epoch {
			epochs[i] += "*"
		}
	}
	return command.OrDash(strings.Join(epochs, ","))
}

// tier is what printNodes says of a load balancer's part in two tiers.
func (n *nodeRow) tier() string {
	if n.Tiered == nil {
		return "-\t-\t-\t-"
	}
	if n.Tiered.Tier == model.TierFirst {
		return "first\t-\t-\t-"
	}
	health := n.Health
	switch {
	case health == "" || health == "unchecked":
		health = "-"
	case n.HealthDetail != "":
		health += ": " + n.HealthDetail
	}
	return fmt.Sprintf("%s\t%d\t%s\t%s", n.Tiered.Tier, n.Tiered.ID, n.Tiered.State, health)
}

func (c *control) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Give load balancers a tier, drain or remove those of the second; forget nodes that are lost",
		Long: `Give load balancers a tier, drain or remove those of the second. Load balancers of the first tier send connections of services with
affinity table to those of the second, which keep their tables. Load balancers without a tier do everything themselves.`,
		Example: `  ballast ctl node add lb1 --tier first
  ballast ctl node add lb3 --tier second --address 10.0.1.3
  ballast ctl node health --check http --check-port 9435 --check-path /healthz
  ballast ctl node drain lb3`,
	}
	remove := c.nodeAction("remove", "Take a load balancer's tier away: one of the second gets no packets any more", ballastv1connect.FleetClient.RemoveNode)
	remove.Long = `Take a load balancer's tier away. One of the second tier gets no packets from the first any more: its connections go to the others
of its tier, and keep their servers. Drain it first where its tables matter.`
	drain := c.nodeAction("drain", "Give a load balancer of the second tier no new connections; those it has stay", ballastv1connect.FleetClient.DrainNode)
	undrain := c.nodeAction("undrain", "Give a load balancer of the second tier new connections again", ballastv1connect.FleetClient.UndrainNode)
	c.mayHarm(drain, remove)
	cmd.AddCommand(c.nodeAddCommand(), drain, undrain, remove, c.nodeHealthCommand(), c.nodeForgetCommand())
	return cmd
}

type nodeCall func(ballastv1connect.FleetClient, context.Context, *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error)

func (c *control) nodeAction(action, short string, call nodeCall) *cobra.Command {
	return &cobra.Command{
		Use:   action + " NAME",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
				return call(fleet, cmd.Context(), &ballastv1.NodeRequest{Node: args[0], Force: force})
			})
		},
	}
}

func (c *control) nodeAddCommand() *cobra.Command {
	node := &ballastv1.Node{}
	cmd := &cobra.Command{
		Use:   "add NAME --tier first|second [--address ADDRESS]",
		Short: "Give a load balancer a tier",
		Long: `Give a load balancer a tier. NAME is the one that it has for controllers (of its certificate), or its --name. One of the second tier
has an address that is its own alone, which the first tier sends to, and an id, which cookies carry: the next free one unless it
is given. Services with affinity table must have room for ids in their cookies (table.node_bits), which they can get only when
they are added.`,
		Example: `  ballast ctl node add lb3 --tier second --address 10.0.1.3`,
		RunE: func(cmd *cobra.Command, args []string) error {
			node.Name = args[0]
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, _ bool) (*ballastv1.ChangeResponse, error) {
				return fleet.AddNode(cmd.Context(), &ballastv1.AddNodeRequest{Node: node})
			})
		},
	}
	fieldFlags(cmd, schema.Named(schema.Node, "tier", "address", "id"), model.Node{}, node, api.NodeToProto)
	cmd.MarkFlagRequired("tier")
	return cmd
}

func (c *control) nodeHealthCommand() *cobra.Command {
	request := &ballastv1.SetNodeHealthRequest{}
	cmd := &cobra.Command{
		Use:   "health --check KIND [--CHOICE VALUE]...",
		Short: "Say how load balancers of the second tier are checked",
		Long: `Say how load balancers of the second tier are checked by those of the first. Choices that are not given stay as they are. Another
--check leaves behind what only the one before had use for. An unhealthy load balancer's connections go to the others at once,
and keep their servers.`,
		Example: `  ballast ctl node health --check http --check-port 9435 --check-path /healthz --check-interval 500ms`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if proto.Size(request) == 0 {
				return command.Usage("nothing to change is given: see `ballast ctl node health --help`")
			}
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, _ bool) (*ballastv1.ChangeResponse, error) {
				return fleet.SetNodeHealth(cmd.Context(), request)
			})
		},
	}
	fields := schema.Section("health", schema.Health, func(h *model.Health) *model.Health { return h })
	fields = slices.DeleteFunc(fields, func(f schema.Field[model.Health]) bool { return f.Key == "health.deadline" }) // nodes have none
	fieldFlags(cmd, fields, model.Health{}, request, func(h *model.Health) *ballastv1.SetNodeHealthRequest {
		return &ballastv1.SetNodeHealthRequest{Health: api.HealthToProto(h)}
	})
	return cmd
}
