// What commands print: tables for people, JSON for programs, logs of daemons.
package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Reading completes a command that finds something out and prints it.
func Reading[T any](cmd *cobra.Command, asJSON *bool, find func(cmd *cobra.Command, args []string) (T, error), show func(*Table, T)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		found, err := find(cmd, args)
		if err != nil {
			return err
		}
		return Print(cmd.OutOrStdout(), *asJSON, found, show)
	}
	return cmd
}

// Print writes what was found: for programs as JSON, for people as it is shown.
func Print[T any](out io.Writer, asJSON bool, found T, show func(*Table, T)) error {
	if asJSON {
		return WriteJSON(out, found)
	}
	table := &Table{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), out: out}
	show(table, found)
	return table.Flush()
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
	out   io.Writer
	right bool
}

// OfNumbers moves the cells of a table that is still empty to the right.
func (t *Table) OfNumbers() {
	t.Init(t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	t.right = true
}

// Row adds cells; a string with tabs is several.
func (t *Table) Row(cells ...any) {
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

// Line adds a line beside the columns, or cells between tabs.
func (t *Table) Line(format string, values ...any) { fmt.Fprintf(t, format+"\n", values...) }

// NonNil has no null in JSON.
func NonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Counted is a number of things.
func Counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
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
