// Package bench is `ballast bench`.
package bench

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Command makes `ballast bench`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what packets and the control plane cost",
	}
	cmd.AddCommand(datapath(), veth(), connectionTable(), controlPlane())
	return cmd
}

func datapath() *cobra.Command {
	return measuring(&cobra.Command{
		Use:   "datapath",
		Short: "Measure the load balancer's program, ns per packet, beside the least that any could do",
		Long: `Measure the time that a packet spends in the load balancer's XDP program, and in programs to compare it with:
  empty         returns XDP_TX at once: what the measurement itself costs
  parse-swap    parses Ethernet, IPv4 and TCP, swaps the MAC addresses
  minimal-ipip  puts one fixed IPv4 header in front of the packet: the floor for every load balancer that encapsulates
  hash          ours, a service with affinity hash
  cookie        ours, an established connection that carries its cookie
  syn-rr        ours, a new connection, dispatch rr
  syn-p2c       ours, a new connection, dispatch p2c
  no-timestamp  ours, a connection that carries nothing and is placed by the table

Nothing is attached to any interface: the kernel runs the programs on frames in memory (BPF_PROG_RUN). Before each run a
wrapper writes the next frame of a list, of flows drawn at random, with their cookies. Times are CPU time of the thread; "net" is less the wrapper. Every cell
checks the action, the bytes of the last frame, and that the program's own counters saw every packet get the verdict
that is shown. Rounds are interleaved and alternate their order, yet other load moves the figures: compare ratios within one
run. Needs root.`,
		Example: `  ballast bench datapath
  ballast bench datapath --json --flows 1,1000000 --rounds 31 > cells.json`,
	}, []uint{1, 10_000, 1_000_000}, bench.MaxFlows, bench.Run, printCells)
}

// measuring completes a command that measures with the numbers of flows that are usual, or others up to most, and shows the result.
func measuring[R any](cmd *cobra.Command, usual []uint, most uint, run func(context.Context, bench.Options) (R, error), show func(*command.Table, R)) *cobra.Command {
	options := bench.Options{Rounds: bench.DefaultRounds, Repeat: bench.DefaultRepeat}
	var flows []uint
	flags := cmd.Flags()
	flags.IntVar(&options.Rounds, "rounds", options.Rounds, "how often each cell is measured; fewer than 15 mean little")
	flags.Uint32Var(&options.Repeat, "repeat", options.Repeat, "runs per measurement; fewer than 500000 mean little")
	flags.UintSliceVar(&flows, "flows", usual, "numbers of distinct flows")
	return command.Reading(cmd, flags.Bool("json", false, "print JSON"), func(cmd *cobra.Command, _ []string) (result R, err error) {
		if err := checkBench(&options, flows, most); err != nil {
			return result, err
		}
		defer fmt.Fprintln(os.Stderr)
		return run(cmd.Context(), options)
	}, show)
}

// checkBench completes the options of a benchmark, or says what is wrong with them.
func checkBench(options *bench.Options, flows []uint, most uint) error {
	for _, n := range flows {
		if n < 1 || n > most {
			return command.Usage("measure with %d flows: not possible: give 1 to %d", n, most)
		}
		options.Flows = append(options.Flows, uint32(n))
	}
	if options.Rounds < 1 || options.Repeat < 1 || len(flows) == 0 {
		return command.Usage("measure %d rounds of %d runs with %d numbers of flows: nothing to measure: give positive numbers", options.Rounds,
			options.Repeat, len(flows))
	}
	options.Progress = func(round, rounds int) { fmt.Fprintf(os.Stderr, "\rround %d of %d ", round, rounds) }
	return nil
}

// printRows prints cells as a table.
func printRows(table *command.Table, cells []bench.Cell) {
	table.OfNumbers()
	table.Row("program\tflows\tmin\tmedian\tmax\tnet\tx floor\ttarget\tverdict")
	for _, c := range cells {
		floor, _ := bench.Find(cells, "minimal-ipip", c.Flows)
		target := "-"
		if limit := bench.Target(c.Program); limit != 0 {
			target = fmt.Sprintf("<= %.1f", limit)
		}
		table.Line("%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%s\t%s\t", c.Program, c.Flows, c.MinNS, c.MedianNS, c.MaxNS,
			c.NetMedianNS, c.NetMedianNS/floor.NetMedianNS, target, c.Verdict)
	}
	table.Line("\nTimes in ns per packet, in the wrapper; net: less the wrapper. Floor: minimal-ipip, net, at as many flows.\n"+
		"Returns (spec_rstack_overflow): %s", bench.Returns())
}

func printCells(table *command.Table, cells []bench.Cell) {
	printRows(table, cells)
	for _, c := range cells {
		if one, ok := bench.Find(cells, c.Program, cells[0].Flows); ok && c.Program == "cookie" && c.Flows != one.Flows {
			table.Line("cookie at %d flows: %+.0f %% of %d flows (target: within 10 %%)", c.Flows, 100*(c.NetMedianNS/one.NetMedianNS-1), one.Flows)
		}
		if hash, ok := bench.Find(cells, "hash", c.Flows); ok && c.Program == "cookie" {
			table.Line("cookie at %d flows: %+.0f %% of hash (target: at most +10 %%)", c.Flows, 100*(c.NetMedianNS/hash.NetMedianNS-1))
		}
	}
}
