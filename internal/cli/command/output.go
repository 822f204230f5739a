// What commands print: tables for people, JSON for programs, logs of daemons.
package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Reading completes a command that finds something out and prints it.
func Reading[T any](cmd *cobra.Command, o *Output, find func(cmd *cobra.Command, args []string) (T, error), show func(*Table, T)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		found, err := find(cmd, args)
		if err != nil {
			return err
		}
		return Print(cmd.OutOrStdout(), o, found, show)
	}
	return cmd
}

// Print writes what was found: for programs as JSON or YAML, for people as it is shown.
func Print[T any](out io.Writer, o *Output, found T, show func(*Table, T)) error {
	if o.Structured() {
		return o.Write(out, found)
	}
	table := newTable(out, o.format == formatWide)
	show(table, found)
	return table.Flush()
}

// Write writes a value for programs.
func (o *Output) Write(out io.Writer, value any) error {
	if o.format != formatYAML {
		return WriteJSON(out, value)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if text, err = yamltree.FromJSON(text); err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// WriteJSON writes a value for programs.
func WriteJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// A Table is what people see: rows of cells in columns, and lines between them.
type Table struct {
	*tabwriter.Writer
	Wide     bool // columns that few need are wanted, too
	out      io.Writer
	right    bool
	sideways bool     // each row is shown as lines of a column's head and a cell
	head     []string // of a table that is shown sideways
}

func newTable(out io.Writer, wide bool) *Table {
	return &Table{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), Wide: wide, out: out}
}

// One shows the only row of a table: all its columns, below each other.
func One[T any](show func(*Table, T)) func(*Table, T) {
	return func(table *Table, one T) {
		table.Wide, table.sideways = true, true
		show(table, one)
	}
}

// OfNumbers moves the cells of a table that is still empty to the right.
func (t *Table) OfNumbers() {
	t.Init(t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	t.right = true
}

// Row adds cells; a string with tabs is several.
func (t *Table) Row(cells ...any) {
	if t.sideways {
		t.below(strings.Split(strings.Join(texts(cells), "\t"), "\t"))
		return
	}
	for i, cell := range cells {
		if i > 0 {
			io.WriteString(t, "\t")
		}
		fmt.Fprint(t, cell)
	}
	if t.right {
		io.WriteString(t, "\t")
	}
	io.WriteString(t, "\n")
}

// below writes the cells of a row below each other; the first row has the heads.
func (t *Table) below(cells []string) {
	if t.head == nil {
		t.head = cells
		return
	}
	for i, cell := range cells {
		fmt.Fprintf(t, "%s\t%s\n", t.head[i], cell)
	}
}

func texts(cells []any) []string {
	all := make([]string, len(cells))
	for i, cell := range cells {
		all[i] = fmt.Sprint(cell)
	}
	return all
}

// Line adds a line beside the columns, or cells between tabs.
func (t *Table) Line(format string, values ...any) { fmt.Fprintf(t, format+"\n", values...) }

// NonNil has no null in JSON.
func NonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Short is a large number for people: 60.0k.
func Short(n uint64) string {
	value, unit := float64(n), ""
	for _, larger := range []string{"k", "M", "G", "T"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, larger
	}
	if unit == "" {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + unit
}

// OrDash shows in a table that there is nothing.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
