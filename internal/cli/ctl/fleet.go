package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
)

func (c *control) servicesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "services", Short: "The services and how they are served",
		Long: "The services and how they are served. With --json, a load balancer adds what it counted.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.json {
				counted, err := c.counted(cmd.Context())
				if err != nil {
					return err
				}
				if counted != nil {
					return command.WriteJSON(cmd.OutOrStdout(), counted)
				}
			}
			wanted, err := c.wanted(cmd)
			if err != nil {
				return err
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), command.NonNil(wanted.Services))
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "SERVICE\tVIP\tPROTOCOL\tPORTS\tDISPATCH\tAFFINITY\tFALLBACK\tFORWARD\tRETURN\tCHECK\tSERVERS")
			for _, s := range wanted.Services {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", s.Name, s.VIP, s.Protocol, strings.Trim(fmt.Sprint(s.Ports), "[]"),
					s.Dispatch, s.Affinity, s.Fallback, s.Forward, s.Return, s.Health.Check, len(s.Servers))
			}
			return table.Flush()
		},
	}
}

// counted is what the load balancer of this machine counted; nil where none is asked.
func (c *control) counted(ctx context.Context) ([]api.ServiceStatus, error) {
	if len(c.controllers) > 0 {
		return nil, nil
	}
	var services []api.ServiceStatus
	err := api.NewClient(c.socketPath()).Get(ctx, api.PathServices, &services)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == http.StatusNotFound { // a controller
		return nil, nil
	}
	return services, err
}

// serverRow is what is known of one server.
type serverRow struct {
	Service string `json:"service"`
	model.Server
	Removed      bool        `json:"removed,omitempty"`
	Health       string      `json:"health"` // healthy, unhealthy, unknown, unchecked
	HealthDetail string      `json:"health_detail,omitempty"`
	LoadSource   string      `json:"load_source,omitempty"`
	Load         float64     `json:"load"`
	Available    float64     `json:"available"`
	WeightNow    uint32      `json:"weight_now"`
	Live         *uint64     `json:"connections"` // null: nobody can tell
	LiveExact    bool        `json:"connections_exact"`
	Agent        string      `json:"agent,omitempty"` // connected, none
	Counted      *serverSeen `json:"counted,omitempty"`
}

// serverSeen is what this machine's load balancer counted.
type serverSeen struct {
	Dispatched uint64 `json:"dispatched"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Path       string `json:"path"`
	TakesPart  bool   `json:"takes_part"`
}

func (c *control) serversCommand() *cobra.Command {
	return &cobra.Command{
		Use: "servers [SERVICE]", Short: "The servers with health, load, weight and live connections",
		Long: `The servers of every service, or of one, removed ones that may still have connections included.

  HEALTH  healthy, unhealthy with the reason, unknown, or - where nothing checks it
  AGENT   of services whose servers answer clients themselves: none is connected that speaks for the server, or one is. Agents
          that run by a file and report to nobody are not known of
  LOAD    requests in work, or CPU
  WEIGHT  as configured
  NOW     the weight that new connections are dispatched by now; 0: it gets none. With awrr, awfd and lcf it follows the load
  LIVE    connections that live; ~ is an estimate of the load balancers, - that nobody can tell
A load balancer adds what it did since it was attached:
  NEW, PACKETS, BYTES  connections, packets and bytes that it sent there
  PATH    the way: device, next hop's MAC address, MTU; or why there is none`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rows, here, err := c.serverRows(cmd, strings.Join(args, ""))
			if err != nil {
				return err
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), command.NonNil(rows))
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			printServers(table, rows, here)
			return table.Flush()
		},
	}
}

// serverRows asks for everything; here says whether a load balancer of this machine was among those asked.
func (c *control) serverRows(cmd *cobra.Command, service string) (rows []serverRow, here bool, err error) {
	ctx := cmd.Context()
	fleet, err := c.fleet(cmd)
	if err != nil {
		return nil, false, err
	}
	answer, err := fleet.ListServers(ctx, &ballastv1.ListServersRequest{Service: service})
	if err != nil {
		return nil, false, err
	}
	counted, err := c.counted(ctx)
	if err != nil {
		return nil, false, err
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
	for _, status := range answer.Servers {
		server, err := api.ServerFromProto(status.Server)
		if err != nil {
			return nil, false, err
		}
		rows = append(rows, serverRow{Service: status.Service, Server: server, Removed: status.Removed, Health: status.Health,
			HealthDetail: status.HealthDetail, LoadSource: status.LoadSource, Load: status.Load, Available: status.Available, WeightNow: status.Weight,
			Live: status.Connections, LiveExact: status.ConnectionsExact, Agent: status.Agent,
			Counted: seen[key{status.Service, status.Server.GetId(), status.Removed}]})
	}
	return rows, counted != nil, nil
}

func printServers(out io.Writer, rows []serverRow, here bool) {
	io.WriteString(out, "SERVICE\tSERVER\tADDRESS\tID\tSTATE\tHEALTH\tAGENT\tLOAD\tWEIGHT\tNOW\tLIVE")
	if here {
		io.WriteString(out, "\tNEW\tPACKETS\tBYTES\tPATH")
	}
	fmt.Fprintln(out)
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%s", r.Service, r.Name, r.address(), r.ID, r.state(), r.health(), command.OrDash(r.Agent), r.load(), r.Weight, r.WeightNow, r.live())
		if seen := r.Counted; seen != nil {
			fmt.Fprintf(out, "\t%d\t%d\t%d\t%s", seen.Dispatched, seen.Packets, seen.Bytes, seen.Path)
		}
		fmt.Fprintln(out)
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
	}
	return fmt.Sprintf("%.1f", r.Load)
}

func (r *serverRow) live() string {
	switch {
	case r.Live == nil:
		return "-"
	case r.LiveExact:
		return fmt.Sprint(*r.Live)
	}
	return fmt.Sprintf("~%d", *r.Live)
}
