// ballast controller restore.
package daemons

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

func restore() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "restore FILE --data-dir DIR", Short: "Make the state of a controller that does not run from a backup",
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return command.Usage("--data-dir is missing: name that of the controller, which has no state yet")
			}
			summary, err := controller.SummariseBackup(args[0])
			if err != nil {
				return err
			}
			if err := etcd.Restore(args[0], dir, command.NewLog(false, false)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored to %s: %s\n", dir, summary)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of the controller's state, which must have none")
	return cmd
}
