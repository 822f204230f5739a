// ballast-lab bench replica.
package bench

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/bench"
)

func replica() *cobra.Command {
	options := bench.ReplicaOptions{}
	cmd := &cobra.Command{Use: "replica", Short: "Measure replicated connections: latency, load of load balancers, memory, copies"}
	flags := cmd.Flags()
	flags.IntVar(&options.Rounds, "rounds", bench.DefaultReplicaRounds, "how often each cell is measured; fewer than 15 mean little")
	flags.Uint32Var(&options.Repeat, "repeat", bench.DefaultReplicaRepeat, "packets per measurement; fewer than 50000 mean little")
	flags.Uint32Var(&options.Entries, "entries", bench.DefaultReplicaEntries, "to copy to a new load balancer, 120 bytes each; 0: none")
	return command.Reading(cmd, command.NewOutput(flags), func(cmd *cobra.Command, _ []string) (*bench.ReplicaResult, error) {
		if options.Rounds < 1 || options.Repeat < 1 || options.Repeat > bench.MaxReplicaRepeat {
			return nil, command.Usage("measure %d rounds of %d connections: not possible: give at least 1 round, and 1 to %d connections", options.Rounds,
				options.Repeat, bench.MaxReplicaRepeat)
		}
		if options.Entries > bench.MaxReplicaEntries {
			return nil, command.Usage("copy %d entries: give 0 to %d", options.Entries, bench.MaxReplicaEntries)
		}
		options.Progress = func(round, rounds int) { fmt.Fprintf(os.Stderr, "\rround %d of %d ", round, rounds) }
		defer fmt.Fprintln(os.Stderr)
		return bench.RunReplica(cmd.Context(), options)
	}, printReplica)
}

func printReplica(table *command.Table, r *bench.ReplicaResult) {
	table.OfNumbers()
	table.Row("a packet's way\tload balancers\tp50\tp99\tfor each of the chain\ttarget")
	for _, l := range r.Latency {
		what, each, target := fmt.Sprintf("first, by a chain of %d", l.Chain), fmt.Sprintf("%.0f", l.EachNS), fmt.Sprintf("<= %d", bench.ReplicaTargetNS)
		if l.Chain == 0 {
			what, each, target = "of a known connection", "-", "-"
		}
		table.Line("%s\t%d\t%.0f\t%.0f\t%s\t%s\t", what, l.Hops, l.P50NS, l.P99NS, each, target)
	}
	table.Row("a first packet's way amid others'\tpackets/s\tp50\tp99\tp99.9")
	for _, l := range r.Loaded {
		table.Line("%d packets per connection, load %.2f, by a chain of %d\t%.0f\t%.0f\t%.0f\t%.0f\t", l.Packets, l.Load, l.Chain, l.PerSecond, l.P50NS, l.P99NS, l.P999NS)
	}
	table.Row("load of new connections\tmin\tmedian\tmax\tmessages\teach packet\tratio\ttarget")
	for _, l := range r.Load {
		table.Line("%d load balancers, chains of %d\t%.0f\t%.0f\t%.0f\t%.2f\t%.0f\t%.2f\t>= %.2f\t", l.Nodes, l.Chain, l.MinNS, l.MedianNS, l.MaxNS, l.Messages, l.PacketNS, l.Ratio, bench.ReplicaLinear)
	}
	table.Row("load of each packet, chains of 2\tmin\tmedian\tmessages per connection\tratio")
	for _, l := range r.Lengths {
		table.Line("%d packets per connection\t%.0f\t%.0f\t%.2f\t%.2f\t", l.Packets, l.MinNS, l.MedianNS, l.Messages, l.Ratio)
	}
	table.Row("memory\tentries\tbytes per entry\ttarget")
	for _, m := range r.Memory {
		table.Line("%s\t%d\t%.1f\t<= %d\t", m.Map, m.BenchMemory.Entries, m.BytesPerEntry, bench.ReplicaTargetBytes)
	}
	if len(r.Copies) > 0 {
		table.Row("copies to a new load balancer\tentries\tseconds\tentries a second\tCPU, us each")
	}
	for _, c := range r.Copies {
		who := "one has them"
		if c.Common > 1 {
			who = fmt.Sprintf("%d have them, one sends", c.Common)
		}
		if c.Shared {
			who = fmt.Sprintf("%d have them and share", c.Common)
		}
		table.Line("%s\t%d\t%.1f\t%.0f\t%.2f\t", who, c.Entries, c.Seconds, c.PerSecond, c.CPU*1e6/float64(c.Entries))
	}
	table.Line("\nTimes in ns: of the way from a switch through load balancers and back to it, one packet at a time; of the CPU for a new connection, all load\n" +
		"balancers together, and for each packet that one of them handles. Ratio: of these packets a second, to those of the fewest load balancers.")
}
