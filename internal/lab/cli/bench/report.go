// ballast-lab bench report.
package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/bench"
	"github.com/ballast-lb/ballast/internal/lab/bench/report"
)

func reporting(build string) *cobra.Command {
	options := bench.Options{Rounds: bench.DefaultRounds, Repeat: bench.DefaultRepeat}
	var flows []uint
	var cards []string
	var file string
	cmd := &cobra.Command{Use: "report", Short: "Measure this machine and write one file with the figures, for others to read"}
	flags := cmd.Flags()
	output := command.NewOutput(flags)
	flags.IntVar(&options.Rounds, "rounds", options.Rounds, "how often each cell is measured; fewer than 15 mean little")
	flags.Uint32Var(&options.Repeat, "repeat", options.Repeat, "runs per measurement; fewer than 500000 mean little")
	flags.UintSliceVar(&flows, "flows", []uint{1, 1_000_000}, "numbers of distinct flows")
	flags.StringSliceVar(&cards, "cards", nil, "also measure over two idle network cards that a wire joins: `SENDER,TESTED` (default: none is touched)")
	flags.StringVar(&file, "file", "ballast-report.tar.gz", "write the report to this `FILE`, which must not exist")
	return command.Reading(cmd, output, func(cmd *cobra.Command, _ []string) (*report.Report, error) {
		if err := checkBench(&options, flows, bench.MaxFlows); err != nil {
			return nil, err
		}
		if len(cards) != 0 && len(cards) != 2 {
			return nil, command.Usage("measure over %d network cards: give two, by a comma: --cards SENDER,TESTED", len(cards))
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return nil, command.Usage("write the report to %s: it exists, or cannot be looked at: give another name by --file", file)
		}
		if parent, err := os.Stat(filepath.Dir(file)); err != nil || !parent.IsDir() {
			return nil, command.Usage("write the report to %s: there is no such folder", file)
		}
		r, err := measure(cmd.Context(), options, cards)
		if err != nil {
			return nil, err
		}
		r.Version = build
		if err := r.Clean(report.Root()); err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if err := command.Print(&text, &command.Output{}, r, printReport); err != nil {
			return nil, err
		}
		if err := report.Write(file, r, text.Bytes()); err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "written to %s; what is in it: tar -xzOf %s\n", file, file)
		return r, nil
	}, printReport)
}

// measure takes all tables, one after the other.
func measure(ctx context.Context, options bench.Options, names []string) (*report.Report, error) {
	begin := time.Now()
	r := &report.Report{Date: begin.UTC().Format(time.DateOnly), Rounds: options.Rounds, Repeat: options.Repeat, Cycles: bench.Cycles()}
	var wire bench.Cards
	if len(names) > 0 {
		wire = bench.Cards{Sender: names[0], Tested: names[1]}
		if err := wire.Check(); err != nil { // now, not in ten minutes
			return nil, err
		}
		for _, name := range names {
			card, err := report.ReadCard(report.Root(), name)
			if err != nil {
				return nil, err
			}
			r.Cards = append(r.Cards, card)
		}
	}
	var err error
	if r.Machine, err = report.ReadMachine(report.Root()); err != nil {
		return nil, err
	}
	step := func(name string) {
		options.Progress = func(round, rounds int) {
			fmt.Fprintf(os.Stderr, "\r%s: round %d of %d, %s ", name, round, rounds, time.Since(begin).Round(time.Second))
		}
	}
	defer fmt.Fprintln(os.Stderr)
	step("programs in memory")
	if r.Datapath, err = bench.Run(ctx, options); err != nil {
		return nil, err
	}
	step("over veth        ")
	if r.Veth, err = bench.RunVeth(ctx, options); err != nil {
		return nil, err
	}
	if len(names) > 0 {
		step("over the wire    ")
		if r.Wire, err = bench.RunCards(ctx, options, wire); err != nil {
			return nil, err
		}
	}
	r.Seconds = time.Since(begin).Round(time.Second).Seconds()
	return r, nil
}

func printReport(table *command.Table, r *report.Report) {
	m := &r.Machine
	table.Line("Ballast %s, %s, %d rounds of %d, %.0f s\n", r.Version, r.Date, r.Rounds, r.Repeat, r.Seconds)
	row := func(what, format string, values ...any) { table.Line("%s\t%s", what, fmt.Sprintf(format, values...)) }
	row("processor", "%s, %s, %d CPUs, %d cores, %d sockets, %d NUMA nodes, virtual: %t", m.Processor.Model, m.Processor.Architecture, m.Processor.CPUs, m.Processor.Cores,
		m.Processor.Sockets, m.Processor.Nodes, m.Processor.Virtual)
	row("caches, microcode", "%s; %s", strings.Join(m.Processor.Caches, ", "), m.Processor.Microcode)
	row("machine", "%s, %d MB", m.Product, m.MemoryMB)
	row("kernel", "%s", m.Kernel)
	row("command line", "%s", strings.Join(m.Parameters, " "))
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		row(name, "%s", m.Settings[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.Mitigation)) {
		row("mitigation of "+name, "%s", m.Mitigation[name])
	}
	for i, c := range r.Cards {
		row(fmt.Sprintf("card %d", i+1), "driver %s %s, firmware %s, %s, PCI %s, %d Mbit/s, NUMA node %s, MTU %d, native XDP: %s", c.Driver, c.Version, c.Firmware, c.Model, c.LinkPCI,
			c.Mbps, c.Node, c.MTU, c.Native)
		row("", "%d receive queues; channels %s; rings %s; on: %s", c.Receive, c.Channels, c.Rings, strings.Join(c.Offloads, " "))
	}
	section(table, "PROGRAMS IN MEMORY")
	printCells(table, r.Datapath)
	section(table, "OVER VETH")
	printVeth(table, r.Veth)
	if len(r.Wire) > 0 {
		section(table, "OVER A WIRE, from card 1 to card 2 and back")
		table.OfNumbers()
		table.Row("program\tflows\tmode\tframes/s: min\tmedian\tmax\tlost")
		for _, c := range r.Wire {
			table.Line("%s\t%d\t%s\t%.0f\t%.0f\t%.0f\t%.1f %%\t", c.Program, c.Flows, c.Mode, c.MinRate, c.Rate, c.MaxRate, 100*c.LostShare)
		}
		table.Line("\nOne CPU sends and does not wait: what is lost is more than the cards, or the tested one's CPU, can take.")
	}
}

// section ends a table: the next has columns of its own.
func section(table *command.Table, title string) {
	table.Flush()
	table.Line("\n%s", title)
	table.Flush()
}
