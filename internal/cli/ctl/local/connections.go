// ctl connections.
package local

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// How often --watch looks: each look goes through all entries that the daemon has.
const (
	watchPeriod      = time.Second
	shortestInterval = 10 * time.Millisecond
)

// connectionsView is what `ballast ctl connections` is asked for.
type connectionsView struct {
	query           api.ConnectionQuery
	client          string
	minAge, minIdle time.Duration
	watch           bool
	interval        time.Duration
	count           int
}

// Connections makes `ballast ctl connections`.
func Connections(c *ask.Control) *cobra.Command {
	var v connectionsView
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "Connections of services with affinity table: who talks most, to whom, for how long",
		RunE:  func(cmd *cobra.Command, _ []string) error { return v.run(cmd, c) },
	}
	flags := cmd.Flags()
	flags.StringVar(&v.query.Service, "service", "", "only this service")
	flags.StringVar(&v.query.Server, "server", "", "only the server of this name")
	flags.StringVar(&v.client, "client", "", "only this client's address, or those of a network (203.0.113.0/24)")
	flags.StringVar(&v.query.State, "state", "", "only this state: new, open, finished, reset")
	flags.BoolVar(&v.query.Suspects, "suspects-only", false, "only those whose packets visit the scrubber")
	flags.Uint64Var(&v.query.MinPackets, "min-packets", 0, "only those of so many packets or more")
	flags.Uint64Var(&v.query.MinBytes, "min-bytes", 0, "only those of so many bytes or more")
	flags.DurationVar(&v.minAge, "min-age", 0, "only those whose entry is so old or older")
	flags.DurationVar(&v.minIdle, "min-idle", 0, "only those of which nothing came for so long")
	flags.StringVar(&v.query.Sort, "sort", "packets", "packets, bytes, age or idle: the largest first")
	flags.IntVar(&v.query.Limit, "top", api.DefaultConnections, "show so many, up to "+strconv.Itoa(api.MaxConnections))
	flags.BoolVar(&v.watch, "watch", false, "show it again every second, until Ctrl-C")
	flags.DurationVar(&v.interval, "interval", watchPeriod, "with --watch: so often")
	flags.IntVar(&v.count, "count", 0, "with --watch: end after so many looks")
	cmd.AddCommand(suspect(c), clearSuspect(c), suspects(c))
	return cmd
}

func (v *connectionsView) run(cmd *cobra.Command, c *ask.Control) (err error) {
	if err := v.check(cmd.Flags().Changed("interval")); err != nil {
		return err
	}
	if v.client != "" {
		if v.query.Client, err = api.ParseNetwork(v.client); err != nil {
			return command.Usage("--client: %w", err)
		}
	}
	v.query.MinAge, v.query.MinIdle = api.InSeconds(v.minAge), api.InSeconds(v.minIdle)
	client, err := c.Local()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	look := func() (answer api.Connections, err error) {
		err = client.Get(cmd.Context(), api.PathConnections+"?"+v.query.Values().Encode(), &answer)
		return answer, err
	}
	if v.watch {
		w := &connectionsWatch{look: look, out: out, json: c.JSON, live: command.IsTerminal(out), before: map[connectionKey]watched{}}
		return w.run(cmd.Context(), v.interval, v.count)
	}
	answer, err := look()
	if err != nil {
		return err
	}
	return command.Print(out, c.JSON, &answer, func(table *command.Table, answer *api.Connections) { printConnections(table, answer, nil) })
}

// check refuses what makes no sense.
func (v *connectionsView) check(interval bool) error {
	switch {
	case v.query.Limit < 1:
		return command.Usage("--top %d: use 1 to %d", v.query.Limit, api.MaxConnections)
	case v.count < 0:
		return command.Usage("--count %d: use 1 or more, or leave it out: until Ctrl-C", v.count)
	case v.count > 0 && !v.watch:
		return command.Usage("--count ends a --watch: give both")
	case v.interval < shortestInterval:
		return command.Usage("--interval %s: use %s or more", v.interval, shortestInterval)
	case interval && !v.watch:
		return command.Usage("--interval is how often a --watch looks: give both")
	case v.minAge < 0:
		return command.Usage("--min-age %s: use 0 or more", v.minAge)
	case v.minIdle < 0:
		return command.Usage("--min-idle %s: use 0 or more", v.minIdle)
	}
	return nil
}

// printConnections writes totals and connections; rates are those of connections by their place, nil: they are not known.
func printConnections(table *command.Table, answer *api.Connections, rates []string) {
	if len(answer.Tables) == 0 && len(answer.SecondTier) > 0 {
		table.Line("node %s is of the first tier: the connections of service %s are in the tables of the second: ask its nodes", answer.Node,
			strings.Join(answer.SecondTier, ", "))
		return
	}
	if len(answer.Tables) == 0 {
		table.Line("node %s keeps no connection table: no service has affinity table here", answer.Node)
		return
	}
	table.Row("SERVICE\tSERVER\tNEW\tOPEN\tFINISHED\tRESET\tSUSPECTS\tPACKETS\tBYTES")
	row := func(service, server string, n *api.ConnectionCounts) {
		table.Row(service, server, n.New, n.Open, n.Finished, n.Reset, n.Suspects, n.Packets, command.Short(n.Bytes))
	}
	for i := range answer.Tables {
		t := &answer.Tables[i]
		row(t.Service, "*", &t.ConnectionCounts)
		for j := range t.Servers {
			row(t.Service, t.Servers[j].Server, &t.Servers[j].ConnectionCounts)
		}
	}
	for i := range answer.Tables {
		t := &answer.Tables[i]
		table.Line("service %s: %d of %d entries used, %d free, %d of connections that have ended", t.Service, t.Used, t.Entries, t.Free, t.Ended)
	}
	table.Line("\n%d of %d connections, as node %s sees them", len(answer.Connections), answer.Matched, answer.Node)
	if len(answer.Connections) == 0 {
		return
	}
	head := "SERVICE\tSERVER\tCLIENT\tSTATE\tPACKETS\tBYTES\tAGE\tIDLE"
	if rates != nil {
		head += "\tPACKETS/S\tBYTES/S"
	}
	table.Row(head)
	for i := range answer.Connections {
		connection := &answer.Connections[i]
		state := connection.State
		if connection.Suspect {
			state += ", suspect"
		}
		cells := []any{connection.Service, connection.Server, connection.Client, state, connection.Packets, command.Short(connection.Bytes),
			shortly(connection.Age), shortly(connection.Idle)}
		if rates != nil {
			cells = append(cells, rates[i])
		}
		table.Row(cells...)
	}
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
	_, err := command.Every(ctx, interval, func() (bool, error) {
		answer, err := w.look()
		if ctx.Err() != nil { // Ctrl-C
			return false, nil
		}
		if err == nil {
			w.looks++
			err = w.show(&answer, time.Now())
		}
		return w.looks == count, err
	})
	return err
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
			rates[i] = fmt.Sprintf("%.0f\t%s", *rated[i].PacketRate, command.Short(uint64(*rated[i].ByteRate)))
		}
	}
	if w.live {
		command.Tell(w.out, command.EraseScreen)
	} else if w.looks > 1 {
		fmt.Fprintln(w.out)
	}
	return command.Print(w.out, false, answer, func(table *command.Table, answer *api.Connections) { printConnections(table, answer, rates) })
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
