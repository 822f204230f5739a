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
		Long: `Give the peer of a load balancer's veth device an XDP program that passes all frames.

A load balancer sends frames back out of the device that they came in by. Over a veth pair (containers, network namespaces) the other end
is woken for such frames only if it has an XDP program itself: without, they vanish or wait for the next ordinary packet. Run this where
that other end is, usually on the host or in the router's namespace. Real network cards need nothing of the kind.

The program runs in native mode and changes nothing. No process or file holds it: it stays until --detach, or until the device is
removed; run it again when the pair is made anew. Another native program does as well, and is left alone.`,
		Example: `  ballast pass --interface veth7f3a
  ip netns exec router ballast pass --interface eth0
  ballast pass --interface veth7f3a --detach`,
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
