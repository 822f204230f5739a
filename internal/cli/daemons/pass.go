// ballast pass: the program that the far end of a veth pair needs.
package daemons

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

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
			for _, name := range names {
				device, err := net.InterfaceByName(name)
				if err != nil {
					return fmt.Errorf("find interface %s: %w: see `ip link`", name, err)
				}
				said := "the pass program is detached"
				if detach {
					err = link.DetachPass(device)
				} else if said, err = link.AttachPass(device); said == "" {
					said = "the pass program is attached"
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", name, said)
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
