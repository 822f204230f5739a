// The ring of load balancers that keep the replicated table: replica list|set|drain|undrain.
package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// ringStatus is the ring, as --json prints it.
type ringStatus struct {
	Needed      bool         `json:"needed"` // some service is replicated
	Chain       uint32       `json:"chain"`
	IdleTimeout float64      `json:"idle_timeout_seconds"`
	Version     uint32       `json:"version"` // 0: there is no ring
	Synced      uint32       `json:"synced"`
	Phase       string       `json:"phase"` // none, updating, syncing, synced
	Lost        uint32       `json:"lost_ranges"`
	Leader      string       `json:"leader"`
	Nodes       []replicaRow `json:"load_balancers"`
	Syncs       []syncRow    `json:"syncs"`
	Problems    []string     `json:"problems"`
}

type replicaRow struct {
	Name     string   `json:"name"`
	Number   uint32   `json:"number"`
	Address  string   `json:"address"`
	State    string   `json:"state"` // on, off, draining, drained, lost
	Share    float64  `json:"share"`
	Position uint32   `json:"position"`
	Chain    []string `json:"chain,omitempty"` // head first, of the connections that it is the tail of
	Version  uint32   `json:"version"`
	Entries  uint64   `json:"entries"`
	Answers  uint64   `json:"answers"`
	Room     uint64   `json:"room"`
	Silent   []string `json:"silent,omitempty"`
}

type syncRow struct {
	ID   uint32   `json:"id"`
	From string   `json:"from"`
	To   []string `json:"to"`
	Done float64  `json:"done"` // 0 to 1
}

// ListReplicas makes `ballast ctl replica list`.
func ListReplicas(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list", Short: "Show the ring of load balancers that keep the replicated table",
	}, c.Output, func(cmd *cobra.Command, _ []string) (ringStatus, error) {
		answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListReplicas, &ballastv1.ListReplicasRequest{})
		return ringOf(answer), err
	}, printRing)
}

func ringOf(a *ballastv1.ListReplicasResponse) ringStatus {
	ring := ringStatus{Needed: a.GetNeeded(), Chain: a.GetReplicas().GetChain(), IdleTimeout: a.GetReplicas().GetIdleTimeout().AsDuration().Seconds(),
		Version: a.GetVersion(), Synced: a.GetSynced(), Phase: a.GetPhase(), Lost: a.GetLost(), Leader: a.GetLeader(), Nodes: []replicaRow{}, Syncs: []syncRow{},
		Problems: command.NonNil(a.GetProblems())}
	for _, n := range a.GetNodes() {
		ring.Nodes = append(ring.Nodes, replicaRow{n.Name, n.Number, n.Address, n.State, n.Share, n.Position, n.Chain, n.Version, n.Entries, n.Answers, n.Capacity, n.Silent})
	}
	for _, s := range a.GetSyncs() {
		ring.Syncs = append(ring.Syncs, syncRow{s.Id, s.Node, s.To, float64(s.Permille) / 1000})
	}
	return ring
}

func printRing(table *command.Table, ring ringStatus) {
	switch {
	case !ring.Needed && ring.Version == 0:
		table.Line("no service is replicated: there is no ring")
	case ring.Version == 0:
		table.Line("there is no ring yet: replicated services go by hash")
	default:
		table.Line("version %d, %s: chains of %s, idle timeout %v", ring.Version, ring.Phase, model.Counted(ring.Chain, "load balancer", "load balancers"),
			time.Duration(ring.IdleTimeout*float64(time.Second)))
	}
	if len(ring.Nodes) > 0 {
		head := "NAME\tADDRESS\tSTATE\tSHARE\tCHAIN\tENTRIES\tANSWERS\tDOES NOT HEAR"
		if table.Wide {
			head += "\tNUMBER\tVERSION\tROOM"
		}
		table.Row(head)
	}
	for i := range ring.Nodes {
		n := &ring.Nodes[i]
		share := "-"
		if n.Share > 0 {
			share = fmt.Sprintf("%.1f %%", 100*n.Share)
		}
		cells := []any{n.Name, n.Address, n.State, share, command.OrDash(strings.Join(n.Chain, " ")), n.Entries, n.Answers, command.OrDash(strings.Join(n.Silent, " "))}
		if table.Wide {
			cells = append(cells, n.Number, n.Version, n.Room)
		}
		table.Row(cells...)
	}
	for _, s := range ring.Syncs {
		table.Line("sync %d: %s copies to %s, %.0f %% done", s.ID, s.From, strings.Join(s.To, ", "), 100*s.Done)
	}
	if ring.Lost > 0 {
		table.Line("%s lost all load balancers of their chain at once, since the first ring", model.Counted(ring.Lost, "range", "ranges"))
	}
	for _, problem := range ring.Problems {
		table.Line("problem: %s", problem)
	}
}

// Replica makes `ballast ctl replica`.
func Replica(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "replica", Short: "Manage the replicated table and its ring"}
	undrain := ask.Changing(c, &cobra.Command{Use: "undrain NAME", Short: "Return a load balancer to the ring"},
		ballastv1connect.FleetClient.UndrainReplica, func(args []string) (*ballastv1.NodeRequest, error) { return &ballastv1.NodeRequest{Node: args[0]}, nil })
	set := setReplicas(c)
	c.MayHarm(set)
	cmd.AddCommand(ListReplicas(c), set, drainReplica(c), undrain)
	return cmd
}

func setReplicas(c *ask.Control) *cobra.Command {
	given := &ballastv1.Replicas{}
	cmd := &cobra.Command{Use: "set [--chain N] [--idle-timeout DURATION]", Short: "Set how the replicated table is kept"}
	fieldFlags(cmd, schema.Replicas, model.Replicas{}, given, func(r *model.Replicas) *ballastv1.Replicas { return api.ReplicasToProto(r) })
	return ask.Changing(c, cmd, ballastv1connect.FleetClient.SetReplicas, func([]string) (*ballastv1.SetReplicasRequest, error) {
		if proto.Size(given) == 0 {
			return nil, command.Usage("nothing to change is given: see `ballast ctl replica set --help`")
		}
		return &ballastv1.SetReplicasRequest{Replicas: given}, nil
	})
}

// ringPeriod is between two looks of who waits.
const ringPeriod = 200 * time.Millisecond

func drainReplica(c *ask.Control) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "drain NAME", Short: "Drain a load balancer from the ring; it keeps forwarding"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !wait && timeout != 0 {
			return command.Usage("--timeout ends a --wait: give both")
		}
		if err := command.NotNegative("timeout", timeout); err != nil {
			return err
		}
		done, err := ask.Change(c, cmd, ballastv1connect.FleetClient.DrainReplica, &ballastv1.NodeRequest{Node: args[0]})
		if err != nil {
			return err
		}
		if err := c.PrintOutcome(cmd, done); err != nil || !wait || c.DryRun() {
			return err
		}
		return awaitDrained(c, cmd, args[0], timeout)
	}
	c.CanPlan(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until others have all entries that it had")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait no longer than that, exit with an error then (default: for ever)")
	return cmd
}

// awaitDrained waits until a load balancer is off the ring, and all chains have what they should.
func awaitDrained(c *ask.Control, cmd *cobra.Command, name string, timeout time.Duration) error {
	fleet, err := c.Fleet(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	line := command.NewLine(cmd.ErrOrStderr(), time.Second)
	said := "nothing is known yet"
	ended, err := command.Every(ctx, ringPeriod, func() (bool, error) {
		answer, err := fleet.ListReplicas(ctx, &ballastv1.ListReplicasRequest{})
		if ctx.Err() != nil {
			return false, nil
		}
		if connect.CodeOf(err) == connect.CodeUnavailable && err != nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		ring := ringOf(answer)
		at := slices.IndexFunc(ring.Nodes, func(n replicaRow) bool { return n.Name == name })
		if at < 0 {
			return false, fmt.Errorf("load balancer %s is not known to the ring any more", name)
		}
		switch n := ring.Nodes[at]; {
		case n.State == "on" || n.State == "off":
			return false, fmt.Errorf("load balancer %s may be on the ring again: another request has undrained it", name)
		case n.State != "draining" && n.Share == 0 && ring.Phase == "synced":
			return true, nil
		}
		said = fmt.Sprintf("%s, %s", ring.Nodes[at].State, ring.Phase)
		for _, s := range ring.Syncs {
			said += fmt.Sprintf(", sync %d: %.0f %%", s.ID, 100*s.Done)
		}
		for _, problem := range ring.Problems {
			said += "; " + problem
		}
		line.Renew(said)
		return false, nil
	})
	line.Leave()
	if err == nil && !ended {
		err = fmt.Errorf("no longer waiting (%s): %s goes on leaving the ring: undo it with `ballast ctl replica undrain %s`", said, name, name)
	}
	return err
}
