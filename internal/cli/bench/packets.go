// What packets cost: ballast bench datapath|veth|table.
package bench

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

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

func veth() *cobra.Command {
	return measuring(&cobra.Command{
		Use:   "veth",
		Short: "Measure forwarding over a pair of veth devices, beside a program that only sends back",
		Long: `Measure what it costs to send a frame over a pair of veth devices to a program, and back: real frames, in native XDP on both
ends, in a network namespace that is made for this and leaves nothing behind. The programs are those of "ballast bench datapath",
and so are the frames. Each is measured right beside "empty", which sends back what it gets, fed the same frames.

Times are CPU time, of all of the way: making the frame, both devices, the program under test, and counting the frame when it is
back. A round is repeated when more than one frame in a hundred was handled in another thread's time. The ratio is what part of
the frames that "empty" could send back the program can. Every frame must come back as long as it should, and the program's own
counters must have seen every packet get the verdict that is shown. Needs root.`,
		Example: `  ballast bench veth
  ballast bench veth --json --flows 1000000 --rounds 31 > veth.json`,
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
		Long: fmt.Sprintf(`Measure what it costs to keep something of every connection, by the same method as "ballast bench datapath". All programs are ours.
Packets of flows drawn at random, all of which are known:
  empty, minimal-ipip  what the measurement itself costs, and the floor
  cookie               affinity cookie: nothing is kept
  table                affinity table: the index in the cookie leads to the connection's entry, where packets are counted several at a time
  table-at-once        the same, but every packet is counted before it leaves, as with a packet limit or a scrubber
  local-hash           affinity local-table, a BPF hash map by 5-tuple, which counts the same
  local-lru            the same, but an LRU, as in service
What changes the tables, with at least %d flows; each flow comes once, and all is put back between batches:
  syn                  affinity cookie, dispatch rr: what is in hash-add and lru-add, too
  table-add            the first packet after the handshake takes an entry of an empty table, and tells the server its index
  table-add-scarce     the same, where 8 of the 63 entries of each partition are free
  table-reuse          the same, where none is free and 8 are of connections that have ended
  table-full           there is none: the packet goes by its cookie
  table-end            FIN
  cookie-end           FIN with affinity cookie: what is in table-end, too
  hash-add, lru-add    SYN
  hash-full, lru-full  SYN, when the map is full: nothing is added; another one's entry is given up
  hash-end, lru-end    RST

The tables are filled first. That takes about 2 us and 600 bytes of memory for each flow. Needs root.`, bench.MinChangedFlows),
		Example: `  ballast bench table
  ballast bench table --json --flows 1000000 --rounds 31 > table.json`,
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
