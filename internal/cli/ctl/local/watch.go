// ctl connections --watch: the same again and again, with rates.
package local

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

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
