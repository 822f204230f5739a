package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// How often --watch looks: each look goes through all entries that the daemon has.
const (
	watchPeriod      = time.Second
	shortestInterval = 10 * time.Millisecond
)

// connectionsAsk is what `ballast ctl connections` is asked for.
type connectionsAsk struct {
	query           api.ConnectionQuery
	client          string
	minAge, minIdle time.Duration
	watch           bool
	interval        time.Duration
	count           int
}

func (c *control) connectionsCommand() *cobra.Command {
	var ask connectionsAsk
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "Connections of services with affinity table: who talks most, to whom, for how long",
		Long: `Show the connections that this load balancer keeps entries for: those of services with affinity table. First come totals, by
service and server, then the connections that the filters choose, those with the most packets first (--sort). Only clients' packets are
counted, with their IP headers, and never the answers.

It is one node's view. Where several load balancers serve a VIP, each has the connections whose packets it gets; one that has moved
from one to another may be in both, until the idle timeout. With two tiers the nodes of the second have the tables.

An entry is made for the first packet after the handshake. Its state is

  new        the server does not use the entry yet
  open       it does: the usual state
  finished   the client has sent FIN       in these two the entry may be taken by another connection at any time,
  reset      the client has sent RST       and is freed 5 seconds after the last packet

An entry says nothing about the server's life and death, and a connection without one loses nothing but its statistics: entries are
freed when nothing came for the service's idle timeout, and none is made while the table is full. AGE is the entry's, to a second; IDLE
is the time since the last packet.

--watch shows it all again every second, with packets and bytes a second since the look before (-: was not in the list then).
--json prints one object, with --watch one a line for each look: node, matched (how many connections the filters choose),
connections, tables, and on a node of the first tier second_tier: services whose tables the nodes of the second have.`,
		Example: `  ballast ctl connections
  ballast ctl connections --service web --sort bytes --top 10 --watch
  ballast ctl connections --client 203.0.113.0/24 --state open --min-age 1h
  ballast ctl connections --server s3 --json
  ballast ctl connections suspect --service web --client 203.0.113.7 --for 10m`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.showConnections(cmd, &ask) },
	}
	flags := cmd.Flags()
	flags.StringVar(&ask.query.Service, "service", "", "only this service")
	flags.StringVar(&ask.query.Server, "server", "", "only the server of this name")
	flags.StringVar(&ask.client, "client", "", "only this client's address, or those of a network (203.0.113.0/24)")
	flags.StringVar(&ask.query.State, "state", "", "only this state: new, open, finished, reset")
	flags.BoolVar(&ask.query.Suspects, "suspects-only", false, "only those whose packets visit the scrubber")
	flags.Uint64Var(&ask.query.MinPackets, "min-packets", 0, "only those of so many packets or more")
	flags.Uint64Var(&ask.query.MinBytes, "min-bytes", 0, "only those of so many bytes or more")
	flags.DurationVar(&ask.minAge, "min-age", 0, "only those whose entry is so old or older")
	flags.DurationVar(&ask.minIdle, "min-idle", 0, "only those of which nothing came for so long")
	flags.StringVar(&ask.query.Sort, "sort", "packets", "packets, bytes, age or idle: the largest first")
	flags.IntVar(&ask.query.Limit, "top", api.DefaultConnections, "show so many, up to "+strconv.Itoa(api.MaxConnections))
	flags.BoolVar(&ask.watch, "watch", false, "show it again every second, until Ctrl-C")
	flags.DurationVar(&ask.interval, "interval", watchPeriod, "with --watch: so often")
	flags.IntVar(&ask.count, "count", 0, "with --watch: end after so many looks")
	cmd.AddCommand(c.suspectCommand(), c.clearSuspectCommand(), c.suspectsCommand())
	return cmd
}

func (c *control) showConnections(cmd *cobra.Command, ask *connectionsAsk) error {
	if ask.query.Limit < 1 {
		return command.Usage("--top %d: use 1 to %d", ask.query.Limit, api.MaxConnections)
	}
	if err := ask.checkTimes(cmd.Flags().Changed("interval")); err != nil {
		return err
	}
	if ask.client != "" {
		network, err := api.ParseNetwork(ask.client)
		if err != nil {
			return command.Usage("--client: %w", err)
		}
		ask.query.Client = network
	}
	ask.query.MinAge, ask.query.MinIdle = api.InSeconds(ask.minAge), api.InSeconds(ask.minIdle)
	client, err := c.local()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	look := func() (answer api.Connections, err error) {
		err = client.Get(cmd.Context(), api.PathConnections+"?"+ask.query.Values().Encode(), &answer)
		return answer, err
	}
	if ask.watch {
		w := &connectionsWatch{look: look, out: out, json: c.json, live: command.IsTerminal(out), before: map[connectionKey]watched{}}
		return w.run(cmd.Context(), ask.interval, ask.count)
	}
	answer, err := look()
	if err != nil {
		return err
	}
	if c.json {
		return command.WriteJSON(out, answer)
	}
	return printConnections(out, &answer, nil)
}

// checkTimes refuses times and looks that make no sense.
func (ask *connectionsAsk) checkTimes(interval bool) error {
	switch {
	case ask.count < 0:
		return command.Usage("--count %d: use 1 or more, or leave it out: until Ctrl-C", ask.count)
	case ask.count > 0 && !ask.watch:
		return command.Usage("--count ends a --watch: give both")
	case ask.interval < shortestInterval:
		return command.Usage("--interval %s: use %s or more", ask.interval, shortestInterval)
	case interval && !ask.watch:
		return command.Usage("--interval is how often a --watch looks: give both")
	case ask.minAge < 0:
		return command.Usage("--min-age %s: use 0 or more", ask.minAge)
	case ask.minIdle < 0:
		return command.Usage("--min-idle %s: use 0 or more", ask.minIdle)
	}
	return nil
}

// printConnections writes totals and connections; rates are those of connections by their place, nil: they are not known.
func printConnections(out io.Writer, answer *api.Connections, rates []string) error {
	if len(answer.Tables) == 0 && len(answer.SecondTier) > 0 {
		_, err := fmt.Fprintf(out, "node %s is of the first tier: the connections of service %s are in the tables of the second: ask its nodes\n", answer.Node,
			strings.Join(answer.SecondTier, ", "))
		return err
	}
	if len(answer.Tables) == 0 {
		_, err := fmt.Fprintf(out, "node %s keeps no connection table: no service has affinity table here\n", answer.Node)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "SERVICE\tSERVER\tNEW\tOPEN\tFINISHED\tRESET\tSUSPECTS\tPACKETS\tBYTES")
	row := func(service, server string, n *api.ConnectionCounts) {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", service, server, n.New, n.Open, n.Finished, n.Reset, n.Suspects, n.Packets, bytesOf(n.Bytes))
	}
	for i := range answer.Tables {
		t := &answer.Tables[i]
		row(t.Service, "*", &t.ConnectionCounts)
		for j := range t.Servers {
			row(t.Service, t.Servers[j].Server, &t.Servers[j].ConnectionCounts)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range answer.Tables {
		t := &answer.Tables[i]
		fmt.Fprintf(out, "service %s: %d of %d entries used, %d free, %d of connections that have ended\n", t.Service, t.Used, t.Entries, t.Free, t.Ended)
	}
	fmt.Fprintf(out, "\n%d of %d connections, as node %s sees them\n", len(answer.Connections), answer.Matched, answer.Node)
	if len(answer.Connections) == 0 {
		return nil
	}
	fmt.Fprint(table, "SERVICE\tSERVER\tCLIENT\tSTATE\tPACKETS\tBYTES\tAGE\tIDLE")
	if rates != nil {
		fmt.Fprint(table, "\tPACKETS/S\tBYTES/S")
	}
	fmt.Fprintln(table)
	for i := range answer.Connections {
		connection := &answer.Connections[i]
		state := connection.State
		if connection.Suspect {
			state += ", suspect"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s", connection.Service, connection.Server, connection.Client, state, connection.Packets,
			bytesOf(connection.Bytes), shortly(connection.Age), shortly(connection.Idle))
		if rates != nil {
			fmt.Fprint(table, "\t", rates[i])
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// bytesOf is a number of bytes for people.
func bytesOf(n uint64) string {
	const step = 1000
	value, unit := float64(n), ""
	for _, larger := range []string{"k", "M", "G", "T"} {
		if value < step {
			break
		}
		value, unit = value/step, larger
	}
	if unit == "" {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + unit
}

// shortly is a duration for people.
func shortly(s api.Seconds) string {
	d := s.Duration()
	if d >= time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}

// A connectionKey is what a connection is known by from one look to the next.
type connectionKey struct {
	service, client string
	entry           uint32
}

// watched is what a connection was at the look before.
type watched struct {
	at      time.Time
	packets uint32
	bytes   uint64
}

// connectionsWatch shows connections again and again.
type connectionsWatch struct {
	look   func() (api.Connections, error)
	out    io.Writer
	json   bool
	live   bool // out is a terminal: the screen is drawn anew
	looks  int
	before map[connectionKey]watched
}

func (w *connectionsWatch) run(ctx context.Context, interval time.Duration, count int) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for seen := 1; ; seen++ {
		answer, err := w.look()
		if ctx.Err() != nil { // Ctrl-C
			return nil
		}
		if err == nil {
			err = w.show(&answer, time.Now())
		}
		if err != nil || seen == count {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// ratedConnection is a connection as --watch --json has it.
type ratedConnection struct {
	api.Connection
	PacketRate *float64 `json:"packets_per_second"` // null: it was not in the list at the look before
	ByteRate   *float64 `json:"bytes_per_second"`
}

func (w *connectionsWatch) show(answer *api.Connections, now time.Time) error {
	rated := w.rate(answer.Connections, now)
	if w.json {
		return json.NewEncoder(w.out).Encode(struct {
			*api.Connections
			Rated []ratedConnection `json:"connections"`
		}{answer, rated})
	}
	rates := make([]string, len(rated))
	for i := range rated {
		rates[i] = "-\t-"
		if rated[i].PacketRate != nil {
			rates[i] = fmt.Sprintf("%.0f\t%s", *rated[i].PacketRate, bytesOf(uint64(*rated[i].ByteRate)))
		}
	}
	if w.live {
		command.Tell(w.out, command.EraseScreen)
	} else if w.looks++; w.looks > 1 {
		fmt.Fprintln(w.out)
	}
	return printConnections(w.out, answer, rates)
}

// rate compares with the look before.
func (w *connectionsWatch) rate(connections []api.Connection, now time.Time) []ratedConnection {
	seen := make(map[connectionKey]watched, len(connections))
	rated := make([]ratedConnection, len(connections))
	for i := range connections {
		connection := &connections[i]
		key := connectionKey{connection.Service, connection.Client.String(), connection.Entry}
		seen[key] = watched{now, connection.Packets, connection.Bytes}
		rated[i].Connection = *connection
		was, known := w.before[key]
		seconds := now.Sub(was.at).Seconds()
		if !known || seconds <= 0 || connection.Packets < was.packets || connection.Bytes < was.bytes { // else another connection of the client
			continue
		}
		rated[i].PacketRate = new(float64(connection.Packets-was.packets) / seconds)
		rated[i].ByteRate = new(float64(connection.Bytes-was.bytes) / seconds)
	}
	w.before = seen
	return rated
}

func (c *control) suspectCommand() *cobra.Command {
	var s api.Suspect
	var client string
	var lasting time.Duration
	cmd := &cobra.Command{
		Use:   "suspect --service SERVICE --client ADDRESS|NETWORK",
		Short: "Send a client's packets through the service's scrubber first",
		Long: `Send a client's packets, or those of a network, through the service's scrubber first. The scrubber is a server of the service with
weight 0; what it lets pass goes on to the server that the connection has, as before. It holds at once, for the connections that are there
and for those that come, but never for the packets of a handshake, and for connections that have no entry.

The list belongs to this node: repeat the command on every load balancer that gets the client's packets. It survives restarts. A second
command sets another end.`,
		Example: `  ballast ctl connections suspect --service web --client 203.0.113.7 --for 10m
  ballast ctl connections suspect --service web --client 2001:db8:f00::/48`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("for") && lasting < time.Second {
				return command.Usage("--for %s: use a second or more, or leave it out: until the client is cleared", lasting)
			}
			s.For = api.InSeconds(lasting)
			return c.changeSuspect(cmd, http.MethodPost, &s, client)
		},
	}
	suspectFlags(cmd, &s, &client)
	cmd.Flags().DurationVar(&lasting, "for", 0, "for so long (default: until it is cleared)")
	return cmd
}

func (c *control) clearSuspectCommand() *cobra.Command {
	var s api.Suspect
	var client string
	cmd := &cobra.Command{
		Use:   "clear --service SERVICE --client ADDRESS|NETWORK",
		Short: "Send a suspect's packets directly to the servers again",
		Long: `Take a client or network off the list of suspects, named as it is there. Its connections go directly to their servers at once, unless
another network on the list has the client.`,
		Example: `  ballast ctl connections clear --service web --client 203.0.113.7`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.changeSuspect(cmd, http.MethodDelete, &s, client) },
	}
	suspectFlags(cmd, &s, &client)
	return cmd
}

func suspectFlags(cmd *cobra.Command, s *api.Suspect, client *string) {
	cmd.Flags().StringVar(&s.Service, "service", "", "the service")
	cmd.Flags().StringVar(client, "client", "", "the client's address, or a network")
	for _, name := range []string{"service", "client"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
}

func (c *control) changeSuspect(cmd *cobra.Command, method string, s *api.Suspect, client string) (err error) {
	if s.Client, err = api.ParseNetwork(client); err != nil {
		return command.Usage("--client: %w", err)
	}
	local, err := c.local()
	if err != nil {
		return err
	}
	var done api.Changed
	if err := local.Do(cmd.Context(), method, api.PathSuspects, s, &done); err != nil {
		return err
	}
	return c.print(cmd.OutOrStdout(), outcome{Changes: command.NonNil(done.Changes)})
}

func (c *control) suspectsCommand() *cobra.Command {
	return read(c, "suspects", "Clients whose packets visit a scrubber first", api.PathSuspects, func(out io.Writer, list []api.Suspect) {
		fmt.Fprintln(out, "SERVICE\tCLIENT\tUNTIL")
		for _, s := range list {
			until := "cleared"
			if !s.Until.IsZero() {
				until = s.Until.Format(time.RFC3339)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\n", s.Service, s.Client, until)
		}
	})
}
