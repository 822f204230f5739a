package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/doctor"
)

// DoctorCommand makes `ballast doctor`.
func DoctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what breaks set-ups, with the remedy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printFindings(cmd.OutOrStdout(), nil)
		},
	}
	return cmd
}

func printFindings(out io.Writer, findings []doctor.Finding) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Severity, f.Check, f.Subject, f.Found)
	}
	return table.Flush()
}
