// ballast bench table.
package bench

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

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
