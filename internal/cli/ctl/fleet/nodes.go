// Nodes: node list|show|add|drain|undrain|remove|health|forget.
package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// nodeRow is one node, as --json prints it.
type nodeRow struct {
	Role         string      `json:"role"`
	Name         string      `json:"name"`
	Address      string      `json:"address,omitempty"`
	Version      string      `json:"version"`
	Ready        string      `json:"ready,omitempty"` // yes, no, unknown, lost
	Since        time.Time   `json:"since,omitzero"`
	LastSeen     time.Time   `json:"last_seen,omitzero"`
	Silence      *float64    `json:"silence_seconds,omitempty"` // since the last message of one that is connected: so old is what is told of it
	Revision     uint64      `json:"revision,omitempty"`
	Services     []string    `json:"services,omitempty"`
	Epochs       []uint32    `json:"epochs,omitempty"` // of the keys that it has
	Epoch        uint32      `json:"epoch,omitempty"`  // of these, the one that is written
	Problems     []string    `json:"problems,omitempty"`
	Tiered       *model.Node `json:"node,omitempty"` // of load balancers with a tier: as configured
	Health       string      `json:"health,omitempty"`
	HealthDetail string      `json:"health_detail,omitempty"`
}

// ListNodes makes `ballast ctl node list`.
func ListNodes(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list", Short: "List controllers, load balancers and agents that are or were connected",
	}, c.Output, func(cmd *cobra.Command, _ []string) ([]nodeRow, error) { return nodeRows(c, cmd) }, printNodes)
}

// showNode makes `ballast ctl node show`. A controller, a load balancer and an agent may have one name.
func showNode(c *ask.Control) *cobra.Command {
	role := ""
	cmd := &cobra.Command{Use: "show NAME", Short: "Show everything known about a node"}
	cmd.Flags().Var(command.OneOf(&role, "controller", "lb", "agent"), "role", "the one of this role, where several have the name: controller, lb or agent")
	return command.Listing(cmd, c.Output, func(cmd *cobra.Command, args []string) (*nodeRow, error) {
		rows, err := nodeRows(c, cmd)
		if err != nil {
			return nil, err
		}
		rows = slices.DeleteFunc(rows, func(n nodeRow) bool { return n.Name != args[0] || role != "" && n.Role != role })
		switch len(rows) {
		case 0:
			return nil, command.NotFound("there is no such node %q: see `ballast ctl node list`", args[0])
		case 1:
			return &rows[0], nil
		}
		return nil, fmt.Errorf("%d nodes are called %s: say which with --role", len(rows), args[0])
	}, command.One(func(table *command.Table, n *nodeRow) { printNodes(table, []nodeRow{*n}) }))
}

func nodeRows(c *ask.Control, cmd *cobra.Command) ([]nodeRow, error) {
	answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListNodes, &ballastv1.ListNodesRequest{})
	rows := []nodeRow{}
	for _, n := range answer.GetNodes() {
		row, wrong := nodeRowOf(n)
		rows, err = append(rows, row), errors.Join(err, wrong)
	}
	return rows, err
}

func nodeRowOf(n *ballastv1.NodeStatus) (nodeRow, error) {
	row := nodeRow{Role: n.Role, Name: n.Name, Address: n.Address, Version: n.Version, Revision: n.Revision, Services: n.Services, Problems: n.Problems,
		Epochs: n.Epochs, Epoch: n.Epoch, Health: n.Health, HealthDetail: n.HealthDetail, Ready: n.Ready, Since: timeOf(n.Since), LastSeen: timeOf(n.LastSeen)}
	if n.Silence != nil {
		row.Silence = new(n.Silence.AsDuration().Seconds())
	}
	if n.Node == nil {
		return row, nil
	}
	node, err := api.NodeFromProto(n.Node)
	row.Tiered = &node
	return row, err
}

// timeOf is the zero time where there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func printNodes(table *command.Table, rows []nodeRow) {
	tiers := slices.ContainsFunc(rows, func(n nodeRow) bool { return n.Tiered != nil })
	row := func(tier, problems string, cells ...any) {
		if tiers {
			cells = append(cells, tier)
		}
		table.Row(append(cells, problems)...)
	}
	if table.Wide {
		row("TIER\tID\tSTATE\tHEALTH", "PROBLEMS", "ROLE\tNAME\tADDRESS\tVERSION\tREADY\tSINCE\tLAST SEEN\tREVISION\tKEYS\tLEADS")
	} else {
		row("TIER\tSTATE\tHEALTH", "PROBLEMS", "ROLE\tNAME\tADDRESS\tREADY\tLAST SEEN\tREVISION\tKEYS")
	}
	for i := range rows {
		n := &rows[i]
		since, seen, revision, leads := "-", n.seen(), "-", "-"
		if !n.Since.IsZero() {
			since = n.Since.Format(time.RFC3339)
		}
		if n.Revision != 0 {
			revision = fmt.Sprint(n.Revision)
		}
		if n.Role == "controller" {
			leads = model.Counted(len(n.Services), "service", "services")
		}
		if !table.Wide {
			tier := strings.Split(n.tier(), "\t")
			row(strings.Join(slices.Delete(tier, 1, 2), "\t"), strings.Join(n.Problems, "; "), n.Role, n.Name, n.Address, command.OrDash(n.Ready), seen, revision, n.keys())
			continue
		}
		row(n.tier(), strings.Join(n.Problems, "; "), n.Role, n.Name, n.Address, n.Version, command.OrDash(n.Ready), since, seen, revision, n.keys(), leads)
	}
}

// seen is how old what is told of it is.
func (n *nodeRow) seen() string {
	switch {
	case n.Ready == "lost":
		return n.LastSeen.Format(time.RFC3339)
	case n.Silence == nil:
		return "-"
	}
	return time.Duration(*n.Silence*float64(time.Second)).Truncate(time.Second).String() + " ago"
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
	if n.Tiered.Tier != model.TierSecond {
		tier, state := "-", "-"
		if n.Tiered.Tier == model.TierFirst {
			tier = "first"
		}
		if as := n.Tiered.BGP.AS; as != 0 {
			state = fmt.Sprintf("%s, AS %d", n.Tiered.State, as)
		}
		if device := n.Tiered.L2.Interface; device != "" {
			state = fmt.Sprintf("%s, L2 on %s", n.Tiered.State, device)
		}
		return fmt.Sprintf("%s\t-\t%s\t-", tier, state)
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

// Node makes `ballast ctl node`.
func Node(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Manage nodes: tiers, BGP, L2, drains, lost nodes"}
	act := func(method ask.Method[*ballastv1.NodeRequest], act *cobra.Command) *cobra.Command {
		act.Use += " NAME"
		return ask.Changing(c, act, method, func(args []string) (*ballastv1.NodeRequest, error) { return &ballastv1.NodeRequest{Node: args[0]}, nil })
	}
	drain := act(ballastv1connect.FleetClient.DrainNode, &cobra.Command{
		Use: "drain", Short: "Give a load balancer of the second tier no new connections; with BGP or L2, withdraw its VIPs",
	})
	undrain := act(ballastv1connect.FleetClient.UndrainNode, &cobra.Command{
		Use: "undrain", Short: "Give a load balancer of the second tier new connections again; with BGP or L2, announce its VIPs",
	})
	remove := act(ballastv1connect.FleetClient.RemoveNode, &cobra.Command{
		Use: "remove", Short: "Remove a load balancer's tier, BGP and L2: one of the second tier gets no more packets",
	})
	forget := act(ballastv1connect.FleetClient.ForgetNode, &cobra.Command{
		Use: "forget", Short: "Forget a lost node that does not return",
	})
	c.MayHarm(drain, remove)
	cmd.AddCommand(ListNodes(c), showNode(c), addNode(c), drain, undrain, remove, nodeHealth(c), forget)
	return cmd
}

func addNode(c *ask.Control) *cobra.Command {
	node := &ballastv1.Node{}
	cmd := &cobra.Command{Use: "add NAME [--tier first|second [--address ADDRESS]] [--bgp-as AS --bgp-neighbors ADDRESS,...] [--l2-interface DEVICE]",
		Short: "Set a load balancer's tier, BGP or L2"}
	fields := slices.DeleteFunc(slices.Clone(schema.Node), func(f schema.Field[model.Node]) bool { return f.Key == "name" || f.Key == "state" })
	fieldFlags(cmd, fields, model.Node{}, node, api.NodeToProto)
	cmd.MarkFlagsOneRequired("tier", "bgp-as", "l2-interface")
	return ask.Changing(c, cmd, ballastv1connect.FleetClient.AddNode, func(args []string) (*ballastv1.AddNodeRequest, error) {
		node.Name = args[0]
		return &ballastv1.AddNodeRequest{Node: node}, nil
	})
}

func nodeHealth(c *ask.Control) *cobra.Command {
	request := &ballastv1.SetNodeHealthRequest{}
	cmd := &cobra.Command{Use: "health --check KIND [--CHOICE VALUE]...", Short: "Set how load balancers of the second tier are checked"}
	fields := schema.Section("health", schema.Health, func(h *model.Health) *model.Health { return h })
	fields = slices.DeleteFunc(fields, func(f schema.Field[model.Health]) bool { return f.Key == "health.deadline" }) // nodes have none
	fieldFlags(cmd, fields, model.Health{}, request, func(h *model.Health) *ballastv1.SetNodeHealthRequest {
		return &ballastv1.SetNodeHealthRequest{Health: api.HealthToProto(h)}
	})
	return ask.Changing(c, cmd, ballastv1connect.FleetClient.SetNodeHealth, func([]string) (*ballastv1.SetNodeHealthRequest, error) {
		if proto.Size(request) == 0 {
			return nil, command.Usage("nothing to change is given: see `ballast ctl node health --help`")
		}
		return request, nil
	})
}
