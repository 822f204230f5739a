package comparison

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// Print writes the tables for people.
func (r *Result) Print(out io.Writer) {
	fmt.Fprintf(out, "%s, %s, %d CPUs, %s, seed %d, %.0f s\n", r.Begin.Format("2006-01-02"), r.Kernel, r.CPUs, r.Processor, r.Seed, r.Seconds)
	fmt.Fprintf(out, "\nBROKEN: connections that ended though their server lived, of those open (ended with their server)\n")
	r.matrix(out, func(m Measured) string {
		if m.Ended > 0 {
			return fmt.Sprintf("%d/%d (%d)", m.Broken, m.Alive, m.Ended)
		}
		return fmt.Sprintf("%d/%d", m.Broken, m.Alive)
	})
	fmt.Fprintf(out, "\nREQUESTS LOST / answers that took more than a second\n")
	r.matrix(out, func(m Measured) string { return fmt.Sprintf("%d / %d", m.Lost, m.Stalled) })
	fmt.Fprintf(out, "\nLATENCY: p99 in ms before / during / after\n")
	r.matrix(out, func(m Measured) string {
		return fmt.Sprintf("%s / %s / %s", short(m.Before.P99), short(m.During.P99), short(m.After.P99))
	})
	fmt.Fprintf(out, "\nCOST of 100,000 requests at full speed, and latency in quiet\n")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "CONTENDER\tCPU s, MACHINE\tBALANCERS\tTHEIR PROCESSES\tREQUESTS/s\tp50 ms\tp99 ms\tQUIET p50\tp99\tp99.9\tVERSION\n")
	for _, row := range r.Contenders {
		if row.Cost == nil {
			continue
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.Cost.Total, row.Cost.Balancers, row.Cost.Own, row.Cost.PerSecond,
			short(row.Cost.P50), short(row.Cost.P99), short(row.Quiet.P50), short(row.Quiet.P99), short(row.Quiet.P999), row.Version)
	}
	table.Flush()
	fmt.Fprintf(out, "\nCAPACITY: memory of an idle connection in kB, and new connections a second, of one request each\n")
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "CONTENDER\tkB, MACHINE\tBALANCERS\tTHEIR PROCESSES\tOF\tNEW/s\n")
	for _, row := range r.Contenders {
		if c := row.Capacity; c != nil {
			fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t%d\t%.0f\n", row.Name, c.Total, c.Balancers, c.Own, c.Idle, c.New)
		}
	}
	table.Flush()
	for _, row := range r.Contenders {
		if row.NotRun != "" {
			fmt.Fprintf(out, "\nnot run: %s: %s\n", row.Name, row.NotRun)
		}
		if row.Error != "" {
			fmt.Fprintf(out, "\nnot to the end: %s: %s\n", row.Name, row.Error)
		}
		if row.Cost != nil && row.Cost.Errors != "" {
			fmt.Fprintf(out, "\n%s: at full speed wrk reports %s\n", row.Name, row.Cost.Errors)
		}
		if row.Capacity != nil && row.Capacity.Errors != "" {
			fmt.Fprintf(out, "\n%s: of new connections wrk reports %s\n", row.Name, row.Capacity.Errors)
		}
		if row.Dropped > 0 {
			fmt.Fprintf(out, "\n%s: this machine lost %d packets, for which its CPUs had no time\n", row.Name, row.Dropped)
		}
	}
}

// matrix has a row for each contender that ran and a column for each event; what a contender cannot be put to has a dash.
func (r *Result) matrix(out io.Writer, cell func(Measured) string) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "CONTENDER")
	for _, step := range r.Schedule {
		fmt.Fprintf(table, "\t%s", step.Event)
	}
	fmt.Fprintln(table)
	for _, row := range r.Contenders {
		if len(row.Steps) == 0 {
			continue
		}
		fmt.Fprint(table, row.Name)
		for _, step := range r.Schedule {
			text := "-"
			if m := row.of(step.Event); m != nil {
				text = cell(*m)
			}
			fmt.Fprintf(table, "\t%s", text)
		}
		fmt.Fprintln(table)
	}
	table.Flush()
}

func (r *Row) of(event string) *Measured {
	for i := range r.Steps {
		if r.Steps[i].Event == event {
			return &r.Steps[i]
		}
	}
	return nil
}

// short has three digits.
func short(ms float64) string {
	if ms == 0 {
		return "-"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(ms))))
	return fmt.Sprintf("%.*f", min(digits, 2), ms)
}
