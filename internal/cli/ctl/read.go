package ctl

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// read makes a command that gets path into a T and prints it.
func read[T any](c *control, use, short, path string, print func(out io.Writer, answer T)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.local()
			if err != nil {
				return err
			}
			var answer T
			if err := client.Get(cmd.Context(), path, &answer); err != nil {
				return err
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), answer)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			print(table, answer)
			return table.Flush()
		},
	}
}

// anyStatus is that of a load balancer, or what an agent has in common with it and its own.
type anyStatus struct {
	api.LBStatus
	Epoch   uint32            `json:"epoch,omitempty"`
	Echoes  map[uint32]uint64 `json:"echoes,omitempty"`
	Tunnels api.Tunnels       `json:"tunnels,omitzero"`
}

func (c *control) statusCommand() *cobra.Command {
	return read(c, "status", "Is it ready, by which file, and what is not as wanted", api.PathStatus, func(out io.Writer, s anyStatus) {
		fmt.Fprintf(out, "role\t%s\nready\t%v\nversion\t%s\nchanges applied\t%d\n", s.Role, s.Ready, s.Version, s.Generation)
		if teller, told := strings.CutPrefix(s.Config.Path, "controller "); told && s.ByControllers {
			how := "state from"
			if !slices.Contains(s.Controllers, teller) {
				how = "last state from"
			}
			fmt.Fprintf(out, "%s\t%s\n", how, teller)
		} else if s.Config.Path != "" {
			fmt.Fprintf(out, "file\t%s\n", s.Config.Path)
		}
		if len(s.Controllers) > 0 || s.Revision > 0 {
			fmt.Fprintf(out, "controllers\t%s\nrevision\t%d\n", strings.Join(s.Controllers, ", "), s.Revision)
		}
		printTier(out, &s.LBStatus)
		if s.Config.Error != "" {
			fmt.Fprintf(out, "refused\t%s\n", s.Config.Error)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Interfaces)) {
			fmt.Fprintf(out, "interface\t%s (%s)\n", name, s.Interfaces[name])
		}
		printTunnels(out, &s.Tunnels)
		for _, epoch := range slices.Sorted(maps.Keys(s.Echoes)) {
			note := ""
			if epoch == s.Epoch {
				note = ", which is written"
			} else if epoch == 0 {
				note = ": of a key that is gone"
			}
			fmt.Fprintf(out, "connections\t%d on epoch %d%s\n", s.Echoes[epoch], epoch, note)
		}
		for _, problem := range s.Problems {
			kind := "problem"
			if slices.Contains(s.NotReady, problem) {
				kind = "not ready"
			}
			fmt.Fprintf(out, "%s\t%s\n", kind, problem)
		}
	})
}

// printTunnels tells whose an agent takes.
func printTunnels(out io.Writer, t *api.Tunnels) {
	switch {
	case t.Source == "":
		return
	case t.Limited:
		fmt.Fprintf(out, "tunnels\tonly from these, known from %s\n", t.Source)
	default:
		fmt.Fprintf(out, "tunnels\tfrom anybody: %s\n", t.Open)
	}
	for _, from := range t.From {
		fmt.Fprintf(out, "tunnels from\t%s\n", from)
	}
	if t.Last.IsValid() {
		fmt.Fprintf(out, "strangers\t%d packets of tunnels, the last from %s\n", t.Strangers, t.Last)
	}
}

// printTier tells of a load balancer's part in two tiers.
func printTier(out io.Writer, s *api.LBStatus) {
	if s.Name != "" {
		fmt.Fprintf(out, "node\t%s\n", s.Name)
	}
	if s.Tier == nil {
		return
	}
	fmt.Fprintf(out, "tier\t%s", s.Tier.Tier)
	if s.Tier.ID != 0 {
		fmt.Fprintf(out, ", with id %d at %s", s.Tier.ID, s.Tier.Address)
	}
	fmt.Fprintln(out)
	for _, node := range s.Tier.Second {
		fmt.Fprintf(out, "second tier\t%s: id %d at %s, %s, %s, %d packets sent\n", node.Name, node.ID, node.Address, node.State, node.Health, node.Packets)
		if node.HealthDetail != "" {
			fmt.Fprintf(out, "\t%s\n", node.HealthDetail)
		}
	}
}

func (c *control) countersCommand() *cobra.Command {
	return read(c, "counters", "Packets by what became of them", api.PathCounters, func(out io.Writer, counters api.Counters) {
		for _, name := range slices.Sorted(maps.Keys(counters.Counters)) {
			if counters.Counters[name] > 0 {
				fmt.Fprintf(out, "%s\t%d\n", name, counters.Counters[name])
			}
		}
	})
}

func (c *control) metricsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "metrics", Short: "Everything that is counted, in the format of Prometheus",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.local()
			if err != nil {
				return err
			}
			stream, err := client.Stream(cmd.Context(), api.PathMetrics)
			if err != nil {
				return err
			}
			defer stream.Close()
			_, err = io.Copy(cmd.OutOrStdout(), stream)
			return err
		},
	}
}

func (c *control) traceCommand() *cobra.Command {
	var service, client, port string
	var count int
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show live packets: which rung of the ladder decided, which server, and why",
		Long: `Show live packets as they are decided, until Ctrl-C: which rung of the ladder decided, which server, and why. At most 200 a
second; how many were left out is said. Tracing costs nothing while nobody looks.`,
		Example: `  ballast ctl trace --client 203.0.113.7
  ballast ctl trace --service web --count 20 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			local, err := c.local()
			if err != nil {
				return err
			}
			query := url.Values{"service": {service}, "client": {client}, "port": {port}}
			stream, err := local.Stream(cmd.Context(), api.PathTrace+"?"+query.Encode())
			if err != nil {
				return err
			}
			defer stream.Close()
			lines := bufio.NewScanner(stream)
			for seen := 0; (count == 0 || seen < count) && lines.Scan(); seen++ {
				if err := c.printEvent(cmd.OutOrStdout(), lines.Bytes()); err != nil {
					return err
				}
			}
			if cmd.Context().Err() != nil { // Ctrl-C
				return nil
			}
			return lines.Err()
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "only this service")
	cmd.Flags().StringVar(&client, "client", "", "only this client's address")
	cmd.Flags().StringVar(&port, "port", "", "only this client's port")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many packets")
	return cmd
}

func (c *control) printEvent(out io.Writer, line []byte) error {
	if c.json {
		_, err := fmt.Fprintf(out, "%s\n", line)
		return err
	}
	var e api.TraceEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("read trace event: %w", err)
	}
	if e.Suppressed > 0 {
		fmt.Fprintf(out, "(%d packets left out)\n", e.Suppressed)
	}
	fmt.Fprintf(out, "%s -> %s %s %d bytes: %s", e.Source, e.Destination, e.Flags, e.Length, e.Verdict)
	if e.Server != "" {
		fmt.Fprintf(out, " -> %s (id %d)", e.Server, e.ID)
	}
	if len(e.Stops) > 0 {
		fmt.Fprintf(out, " then %s", strings.Join(e.Stops, ", "))
	}
	if e.Timestamp != 0 || e.Echo != 0 {
		fmt.Fprintf(out, " TSval %d TSecr %d", e.Timestamp, e.Echo)
	}
	_, err := fmt.Fprintln(out)
	return err
}
