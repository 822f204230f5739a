// Servers: server list|show|add|drain|undrain|remove|forget|weight.
package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/api/factors"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// serverRow is what is known of one server.
type serverRow struct {
	Service string `json:"service"`
	model.Server
	Removed      bool             `json:"removed,omitempty"`
	Health       string           `json:"health"` // healthy, unhealthy, unknown, unchecked
	HealthDetail string           `json:"health_detail,omitempty"`
	LoadSource   string           `json:"load_source,omitempty"`
	Load         float64          `json:"load"`
	Available    float64          `json:"available"`
	WeightNow    uint32           `json:"weight_now"`
	Live         *uint64          `json:"connections"` // null: nobody can tell
	LiveExact    bool             `json:"connections_exact"`
	LiveBefore   *liveBefore      `json:"connections_before,omitempty"` // null connections: what the agent, which is silent now, counted last
	Agent        string           `json:"agent,omitempty"`              // connected, none
	SlowStart    *slowStart       `json:"slow_start,omitempty"`
	Counted      *serverSeen      `json:"counted,omitempty"`
	Source       *sourceRow       `json:"source,omitempty"`
	Factors      []factors.Factor `json:"factors,omitempty"`             // of show: why it gets what it gets
	Lost         []string         `json:"lost_load_balancers,omitempty"` // that may still send to it: weight_now and an estimate say nothing of them
}

// liveBefore is a count that is no more than that: connections have begun and ended since.
type liveBefore struct {
	Connections uint64  `json:"connections"`
	Age         float64 `json:"age_seconds"`
}

// slowStart is how far a server has come that starts.
type slowStart struct {
	Part  float64   `json:"part"`  // of weight_now, the smallest of all load balancers
	Until time.Time `json:"until"` // it has all
}

// serverSeen is what this machine's load balancer counted.
type serverSeen struct {
	Dispatched uint64 `json:"dispatched"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Path       string `json:"path"`
	TakesPart  bool   `json:"takes_part"`
}

// ListServers makes `ballast ctl server list`.
func ListServers(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list [SERVICE]", Short: "List servers with health, load, weight and live connections",
	}, c.Output, func(cmd *cobra.Command, args []string) ([]serverRow, error) {
		rows, _, err := serverRows(c, cmd, strings.Join(args, ""))
		return rows, err
	}, printServers)
}

// showServer makes `ballast ctl server show`.
func showServer(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "show SERVICE SERVER", Short: "Show everything known about a server, and why it gets what it gets"}, c.Output,
		func(cmd *cobra.Command, args []string) (*serverRow, error) {
			rows, answer, err := serverRows(c, cmd, args[0])
			if err != nil {
				return nil, err
			}
			// One that was removed may have the name of one that is there, which comes first.
			at := slices.IndexFunc(rows, func(r serverRow) bool { return r.Name == args[1] })
			if at < 0 {
				return nil, command.NotFound("service %s has no server %q: see `ballast ctl server list`", args[0], args[1])
			}
			fleet, err := fleetAt(c, cmd, 0)
			if service := fleet.Service(rows[at].Service); service != nil {
				known := factors.Known{Service: service, Servers: answer.Servers, Lost: answer.Lost, Now: time.Now()}
				rows[at].Factors = known.Of(answer.Servers[at])
			}
			return &rows[at], err
		}, command.One(func(table *command.Table, r *serverRow) {
			printServers(table, []serverRow{*r})
			for _, factor := range r.Factors {
				table.Line("%s: %s", factor.Name, factor.Text)
			}
		}))
}

// serverRows asks for everything, and a load balancer of this machine for what it counted. Rows are of the servers of the answer, in their order.
func serverRows(c *ask.Control, cmd *cobra.Command, service string) ([]serverRow, *ballastv1.ListServersResponse, error) {
	answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListServers, &ballastv1.ListServersRequest{Service: service})
	if err != nil {
		return nil, nil, err
	}
	counted, err := countedHere(cmd.Context(), c)
	if err != nil {
		return nil, nil, err
	}
	type key struct {
		service string
		id      uint32
		removed bool
	}
	seen := map[key]*serverSeen{}
	for _, s := range counted {
		for _, server := range s.Servers {
			seen[key{s.Name, uint32(server.ID), server.Removed}] = &serverSeen{server.Connections, server.Packets, server.Bytes, server.Path, server.TakesPart}
		}
	}
	sources := map[string]*sourceRow{}
	for _, s := range answer.Sources {
		sources[s.Service] = new(sourceOf(s))
	}
	rows := []serverRow{}
	for _, status := range answer.Servers {
		server, err := api.ServerFromProto(status.Server)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, serverRow{Service: status.Service, Server: server, Removed: status.Removed, Health: status.Health,
			HealthDetail: status.HealthDetail, LoadSource: status.LoadSource, Load: status.Load, Available: status.Available, WeightNow: status.Weight,
			Live: status.Connections, LiveExact: status.ConnectionsExact, Agent: status.Agent,
			Counted: seen[key{status.Service, status.Server.GetId(), status.Removed}], Source: sources[status.Service], Lost: answer.Lost})
		if status.Connections == nil && status.ConnectionsAge != nil {
			rows[len(rows)-1].LiveBefore = &liveBefore{status.ConnectionsBefore, status.ConnectionsAge.AsDuration().Seconds()}
		}
		if status.WholeAt != nil {
			rows[len(rows)-1].SlowStart = &slowStart{status.SlowStart, status.WholeAt.AsTime()}
		}
	}
	return rows, answer, nil
}

func printServers(table *command.Table, rows []serverRow) {
	counted := slices.ContainsFunc(rows, func(r serverRow) bool { return r.Counted != nil })
	head := "SERVICE\tSERVER\tADDRESS\tSTATE\tHEALTH\tWEIGHT\tNOW\tLOAD\tLIVE"
	if counted {
		head += "\tNEW"
	}
	if table.Wide {
		head += "\tID\tAGENT"
	}
	if table.Wide && counted {
		head += "\tPACKETS\tBYTES\tPATH"
	}
	table.Row(head)
	for i := range rows {
		r := &rows[i]
		cells := []any{r.Service, r.Name, r.address(), r.state(), r.health(), r.Weight, r.now(), r.load(), r.live()}
		seen := r.Counted
		if seen == nil { // of a load balancer that does not know it yet
			seen = &serverSeen{Path: "-"}
		}
		if counted {
			cells = append(cells, seen.Dispatched)
		}
		if table.Wide {
			cells = append(cells, r.ID, command.OrDash(r.Agent))
		}
		if table.Wide && counted {
			cells = append(cells, seen.Packets, seen.Bytes, seen.Path)
		}
		table.Row(cells...)
	}
	for i := range rows {
		if source := rows[i].Source; source != nil && source.Problem != "" && (i == 0 || rows[i-1].Source != source) {
			table.Line("! servers of %s from %s: %s", source.Service, source.Source, source.Problem)
		}
	}
	if len(rows) > 0 && len(rows[0].Lost) > 0 {
		table.Line("? %s, and may still send connections: figures with ? do not include them", areLost(rows[0].Lost))
	}
}

func (r *serverRow) address() string {
	if r.Port == 0 {
		return r.Address.String()
	}
	return fmt.Sprintf("%s port %d", r.Address, r.Port)
}

func (r *serverRow) state() string {
	state := r.State.String()
	switch {
	case r.Removed:
		state = "removed"
	case r.State == model.StateDraining && !r.Deadline.IsZero():
		state += " until " + r.Deadline.Format(time.RFC3339)
	}
	if r.SlowStart != nil {
		state += fmt.Sprintf(", starts: %.0f %% until %s", 100*r.SlowStart.Part, r.SlowStart.Until.UTC().Format(time.RFC3339))
	}
	if r.Counted != nil && !r.Counted.TakesPart {
		state += ", no cookie"
	}
	return state
}

func (r *serverRow) health() string {
	switch {
	case r.Health == "unchecked":
		return "-"
	case r.HealthDetail == "":
		return r.Health
	}
	return r.Health + ": " + r.HealthDetail
}

// load is in the unit of its source.
func (r *serverRow) load() string {
	switch r.LoadSource {
	case "":
		return "-"
	case "cpu":
		return fmt.Sprintf("%.0f%% cpu", 100*r.Load)
	case "packets":
		return fmt.Sprintf("%.0f packets/s", r.Load)
	case "bytes":
		return fmt.Sprintf("%.1f kB/s", r.Load/1000)
	}
	return fmt.Sprintf("%.1f", r.Load)
}

// now is no fact for load balancers that nobody can tell of a change.
func (r *serverRow) now() string { return fmt.Sprint(r.WeightNow) + r.doubt() }

func (r *serverRow) live() string {
	switch {
	case r.LiveBefore != nil:
		return fmt.Sprintf("- (%d %s ago)", r.LiveBefore.Connections, time.Duration(r.LiveBefore.Age*float64(time.Second)).Round(time.Second))
	case r.Live == nil:
		return "-"
	case r.LiveExact: // the agent counts also what a lost load balancer sends
		return fmt.Sprint(*r.Live)
	}
	return fmt.Sprintf("~%d", *r.Live) + r.doubt()
}

func (r *serverRow) doubt() string {
	if len(r.Lost) > 0 {
		return "?"
	}
	return ""
}

// areLost begins a sentence about load balancers.
func areLost(names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("load balancer %s is lost", names[0])
	}
	return fmt.Sprintf("load balancers %s are lost", strings.Join(names, ", "))
}

// Server makes `ballast ctl server`.
func Server(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "Manage servers"}
	act := func(method ask.Method[*ballastv1.ServerRequest], act *cobra.Command) *cobra.Command {
		act.Use += " SERVICE SERVER"
		return ask.Changing(c, act, method, func(args []string) (*ballastv1.ServerRequest, error) {
			return &ballastv1.ServerRequest{Service: args[0], Server: args[1]}, nil
		})
	}
	undrain := act(ballastv1connect.FleetClient.UndrainServer, &cobra.Command{Use: "undrain", Short: "Return a drained server to service"})
	remove := act(ballastv1connect.FleetClient.RemoveServer, &cobra.Command{
		Use: "remove", Short: "Remove a server; the connections it has stay until they end",
	})
	forget := act(ballastv1connect.FleetClient.ForgetServer, &cobra.Command{
		Use: "forget", Short: "Forget a removed server now: its connections break, its id is free",
	})
	drain, weight := drain(c), weight(c)
	c.MayHarm(drain, remove, weight)
	cmd.AddCommand(ListServers(c), showServer(c), addServer(c), drain, undrain, remove, forget, weight)
	return cmd
}

func weight(c *ask.Control) *cobra.Command {
	return ask.Changing(c, &cobra.Command{
		Use: "weight SERVICE SERVER WEIGHT", Short: "Change a server's weight (0: no new connections; rr takes all others as 1)",
	}, ballastv1connect.FleetClient.WeighServer, func(args []string) (*ballastv1.WeighServerRequest, error) {
		weight, err := strconv.ParseUint(args[2], 10, 16)
		if err != nil {
			return nil, command.Usage("weight %s: use a number from 0 to %d", args[2], model.MaxWeight)
		}
		return &ballastv1.WeighServerRequest{Service: args[0], Server: args[1], Weight: uint32(weight)}, nil
	})
}

func addServer(c *ask.Control) *cobra.Command {
	server := &ballastv1.Server{}
	cmd := &cobra.Command{Use: "add SERVICE ADDRESS", Short: "Add a server"}
	fieldFlags(cmd, schema.Named(schema.Server, "name", "id", "port", "weight"), model.NewServer(), server, api.ServerToProto)
	return ask.Changing(c, cmd, ballastv1connect.FleetClient.AddServer, func(args []string) (*ballastv1.AddServerRequest, error) {
		if _, err := model.ParseAddress(args[1]); err != nil {
			return nil, command.Usage("address: %w", err)
		}
		server.Address = args[1]
		return &ballastv1.AddServerRequest{Service: args[0], Server: server}, nil
	})
}
