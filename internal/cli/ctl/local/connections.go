// ctl connections.
package local

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// connectionsView is what `ballast ctl connection list` is asked for.
type connectionsView struct {
	query           api.ConnectionQuery
	client          string
	minAge, minIdle time.Duration
	before          map[connectionKey]watched // nil: this is the first look
}

// ListConnections makes `ballast ctl connection list`.
func ListConnections(c *ask.Control) *cobra.Command {
	v := &connectionsView{}
	cmd := &cobra.Command{Use: "list", Short: "List connections of services with affinity table: top talkers, servers, durations"}
	flags := cmd.Flags()
	flags.StringVar(&v.query.Service, "service", "", "only this service")
	flags.StringVar(&v.query.Server, "server", "", "only the server of this name")
	flags.StringVar(&v.client, "client", "", "only this client's address, or those of a network (203.0.113.0/24)")
	flags.Var(command.OneOf(&v.query.State, "", "new", "open", "finished", "reset"), "state", "only this state: new, open, finished, reset")
	flags.BoolVar(&v.query.Suspects, "suspects-only", false, "only those whose packets visit the scrubber")
	flags.Uint64Var(&v.query.MinPackets, "min-packets", 0, "only those of so many packets or more")
	flags.Uint64Var(&v.query.MinBytes, "min-bytes", 0, "only those of so many bytes or more")
	flags.DurationVar(&v.minAge, "min-age", 0, "only those whose entry is so old or older")
	flags.DurationVar(&v.minIdle, "min-idle", 0, "only those of which nothing came for so long")
	flags.StringVar(&v.query.Sort, "sort", "packets", "packets, bytes, age or idle: the largest first")
	flags.IntVar(&v.query.Limit, "top", api.DefaultConnections, "show so many, up to "+strconv.Itoa(api.MaxConnections))
	return command.Listing(cmd, c.Output, func(cmd *cobra.Command, _ []string) (*connectionsLook, error) { return v.look(cmd, c) }, printConnections)
}

// Connection makes `ballast ctl connection`.
func Connection(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "connection", Short: "Show the connections in this load balancer's tables"}
	cmd.AddCommand(ListConnections(c))
	return cmd
}

// look asks, and compares with the look before.
func (v *connectionsView) look(cmd *cobra.Command, c *ask.Control) (*connectionsLook, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	client, err := c.Local()
	if err != nil {
		return nil, err
	}
	found := &connectionsLook{}
	if err := client.Get(cmd.Context(), api.PathConnections+"?"+v.query.Values().Encode(), &found.Connections); err != nil {
		return nil, err
	}
	if command.Watches(cmd) {
		found.rated = v.rate(found.Connections.Connections, time.Now())
	}
	return found, nil
}

// check refuses what makes no sense.
func (v *connectionsView) check() (err error) {
	switch {
	case v.query.Limit < 1:
		return command.Usage("--top %d: use 1 to %d", v.query.Limit, api.MaxConnections)
	case v.minAge < 0:
		return command.Usage("--min-age %s: use 0 or more", v.minAge)
	case v.minIdle < 0:
		return command.Usage("--min-idle %s: use 0 or more", v.minIdle)
	}
	if v.client != "" {
		if v.query.Client, err = api.ParseNetwork(v.client); err != nil {
			return command.Usage("--client: %w", err)
		}
	}
	v.query.MinAge, v.query.MinIdle = api.InSeconds(v.minAge), api.InSeconds(v.minIdle)
	return nil
}

// connectionsLook is what one look found.
type connectionsLook struct {
	api.Connections
	rated []ratedConnection // nil: it is not watched
}

// MarshalJSON has rates where there are any.
func (l *connectionsLook) MarshalJSON() ([]byte, error) {
	if l.rated == nil {
		return json.Marshal(&l.Connections)
	}
	return json.Marshal(struct {
		*api.Connections
		Rated []ratedConnection `json:"connections"`
	}{&l.Connections, l.rated})
}

// printConnections writes totals and connections.
func printConnections(table *command.Table, look *connectionsLook) {
	answer := &look.Connections
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
	if look.rated != nil {
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
		if look.rated != nil {
			cells = append(cells, look.rated[i].rates())
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

// ratedConnection is a connection as --watch -o json has it.
type ratedConnection struct {
	api.Connection
	PacketRate *float64 `json:"packets_per_second"` // null: it was not in the list at the look before
	ByteRate   *float64 `json:"bytes_per_second"`
}

// rates are the cells of a table.
func (r *ratedConnection) rates() string {
	if r.PacketRate == nil {
		return "-\t-"
	}
	return fmt.Sprintf("%.0f\t%s", *r.PacketRate, command.Short(uint64(*r.ByteRate)))
}

// rate compares with the look before.
func (v *connectionsView) rate(connections []api.Connection, now time.Time) []ratedConnection {
	seen := make(map[connectionKey]watched, len(connections))
	rated := make([]ratedConnection, len(connections))
	for i := range connections {
		connection := &connections[i]
		key := connectionKey{connection.Service, connection.Client.String(), connection.Entry}
		seen[key] = watched{now, connection.Packets, connection.Bytes}
		rated[i].Connection = *connection
		was, known := v.before[key]
		seconds := now.Sub(was.at).Seconds()
		if !known || seconds <= 0 || connection.Packets < was.packets || connection.Bytes < was.bytes { // else another connection of the client
			continue
		}
		rated[i].PacketRate = new(float64(connection.Packets-was.packets) / seconds)
		rated[i].ByteRate = new(float64(connection.Bytes-was.bytes) / seconds)
	}
	v.before = seen
	return rated
}
