// ballast pass: the program that the far end of a veth pair needs.
package daemons

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/linux/link"
)

// Pass makes `ballast pass`.
func Pass() *cobra.Command {
	var names []string
	var detach bool
	cmd := &cobra.Command{
		Use:   "pass --interface DEVICE",
		Short: "Give the peer of a load balancer's veth device an XDP program that passes all frames",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(names) == 0 {
				return command.Usage("--interface names no device")
			}
			found, err := devices.Find(names)
			if err != nil {
				return err
			}
			for _, device := range found {
				said := "the pass program is detached"
				if detach {
					err = link.DetachPass(device)
				} else if said, err = link.AttachPass(device); said == "" {
					said = "the pass program is attached"
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", device.Name, said)
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&names, "interface", nil, "`DEVICE` in this network namespace, may be repeated")
	cmd.Flags().BoolVar(&detach, "detach", false, "take the program off again")
	if err := cmd.MarkFlagRequired("interface"); err != nil {
		panic(err)
	}
	return cmd
}
