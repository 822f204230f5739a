// What packets cost: ballast-lab bench datapath|veth|table.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/bench"
)

func datapath() *cobra.Command {
	var peers []string
	cmd := measuring(&cobra.Command{
		Use:   "datapath",
		Short: "Measure the load balancer's program, ns per packet, beside the least that any could do",
	}, []uint{1, 10_000, 1_000_000}, bench.MaxFlows, func(ctx context.Context, options bench.Options) ([]bench.Cell, error) {
		options.Peers = peers
		return bench.Run(ctx, options)
	}, printCells)
	cmd.Flags().StringArrayVar(&peers, "peer", nil, "measure another XDP program too, as FILE describes it; repeat for more")
	return cmd
}

// measuring completes a command that measures with the numbers of flows that are usual, or others up to most, and shows the result.
func measuring[R any](cmd *cobra.Command, usual []uint, most uint, run func(context.Context, bench.Options) (R, error), show func(*command.Table, R)) *cobra.Command {
	options := bench.Options{Rounds: bench.DefaultRounds, Repeat: bench.DefaultRepeat}
	var flows []uint
	flags := cmd.Flags()
	flags.IntVar(&options.Rounds, "rounds", options.Rounds, "how often each cell is measured; fewer than 15 mean little")
	flags.Uint32Var(&options.Repeat, "repeat", options.Repeat, "runs per measurement; fewer than 500000 mean little")
	flags.UintSliceVar(&flows, "flows", usual, "numbers of distinct flows")
	return command.Reading(cmd, command.NewOutput(flags), func(cmd *cobra.Command, _ []string) (result R, err error) {
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
	table.Row("program\tflows\tmin\tmedian\tmax\tnet min\tnet\tcycles\tx floor\ttarget\tverdict")
	rate := bench.Cycles()
	for _, c := range cells {
		floor, _ := bench.Find(cells, "minimal-ipip", c.Flows)
		target := "-"
		if limit := bench.Target(c.Program); limit != 0 {
			target = fmt.Sprintf("<= %.1f", limit)
		}
		cycles := "-"
		if rate.Of != "" {
			cycles = fmt.Sprintf("%.0f", c.NetMedianNS*rate.PerNS)
		}
		table.Line("%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%.2f\t%s\t%s\t", c.Program, c.Flows, c.MinNS, c.MedianNS, c.MaxNS,
			c.NetMinNS, c.NetMedianNS, cycles, c.NetMedianNS/floor.NetMedianNS, target, c.Verdict)
	}
	table.Line("\nTimes in ns per packet, in the wrapper; net: less the wrapper, of medians. Floor: minimal-ipip, net, at as many flows.\n"+
		"Cycles: net, of the %s, %.2f in a ns. Returns (spec_rstack_overflow): %s", cmp.Or(rate.Of, "processor, which cannot be counted here"), rate.PerNS,
		bench.Returns())
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
	printConnections(table, cells)
}

// printConnections prints what connections of so many packets cost, at the largest number of flows.
func printConnections(table *command.Table, cells []bench.Cell) {
	all := bench.Connections(cells, cells[len(cells)-1].Flows)
	if all != nil {
		table.Row("a client's packets in a connection, ns (net min)\tsession: tls\tcookie\thash\tsession / cookie")
	}
	for _, c := range all {
		table.Line("%d\t%.0f\t%.0f\t%.0f\t%.2f\t", c.Packets, c.Session, c.Cookie, c.Hash, c.Session/c.Cookie)
	}
}

func veth() *cobra.Command {
	return measuring(&cobra.Command{
		Use:   "veth",
		Short: "Measure forwarding over a pair of veth devices, beside a program that only sends back",
	}, []uint{1, 1_000_000}, bench.MaxFlows, bench.RunVeth, printVeth)
}

func printVeth(table *command.Table, cells []bench.VethCell) {
	table.OfNumbers()
	table.Row("program\tflows\tmin\tmedian\tmax\tof empty: least\tmedian\tmost\ttarget\tverdict")
	for _, c := range cells {
		target := "-"
		if c.Program == "cookie" {
			target = fmt.Sprintf(">= %.2f", bench.VethTarget)
		}
		table.Line("%s\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%s\t%s\t", c.Program, c.Flows, c.MinNS, c.MedianNS, c.MaxNS,
			c.MinRatio, c.Ratio, c.MaxRatio, target, c.Verdict)
	}
	table.Line("\nTimes in ns of CPU time per frame, all of the way there and back. Of empty: of the frames a second that it could send back.")
}

func connectionTable() *cobra.Command {
	return measuring(&cobra.Command{
		Use:   "table",
		Short: "Measure connection tables, ns per packet, beside the maps that look up the 5-tuple",
	}, []uint{1, 10_000, 1_000_000, 10_000_000}, bench.MaxTableFlows, bench.RunTable, printTables)
}

func printTables(table *command.Table, result *bench.TableResult) {
	printRows(table, result.Cells)
	table.Row("ratio of medians\tin the wrapper\tnet\ttarget")
	for _, r := range result.Ratios {
		target := "-"
		if r.Least != 0 {
			target = fmt.Sprintf(">= %.1f", r.Least)
		}
		table.Line("%s at %d flows / %s at %d\t%.2f\t%.2f\t%s\t", r.Of, r.OfFlows, r.To, r.ToFlows, r.Wrapped, r.Net, target)
	}
	table.Line("\t\t\t\t\nmemory\tmap\tentries\tbytes per entry\t")
	for _, m := range result.Memory {
		name := m.Table
		if m.Flows != 0 {
			name = fmt.Sprintf("%s for %d flows", m.Table, m.Flows)
		}
		table.Line("%s\t%s\t%d\t%.2f\t", name, m.Map, m.Entries, m.BytesPerEntry)
	}
	table.Line("\nMemory as the kernel accounts it. Only IPv6 connections use connection_addresses. assignments is of one size whatever the tables' are.")
}
