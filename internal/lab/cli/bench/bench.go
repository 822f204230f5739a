// Package bench is `ballast-lab bench`.
package bench

import "github.com/spf13/cobra"

// Command makes `ballast-lab bench`; build is the version.
func Command(build string) *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure what packets and the control plane cost"}
	cmd.AddCommand(datapath(), veth(), connectionTable(), replica(), controlPlane(), reporting(build))
	return cmd
}
