// The signing authority, which controllers sign the certificates of nodes with.
package pki

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/pki"
)

func delegate(c *ask.Control) *cobra.Command {
	var days uint
	cmd := &cobra.Command{
		Use:   "delegate DIR",
		Short: "Have controllers sign certificates of load balancers and agents, below the authority in DIR",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			life := time.Duration(0)
			if cmd.Flags().Changed("days") {
				if life, err = lifeOf(days); err != nil {
					return err
				}
			}
			client, err := c.Enrolment()
			if err != nil {
				return err
			}
			signing, err := pki.Delegate(args[0], life)
			if err != nil {
				return err
			}
			request := &ballastv1.SetSigningAuthorityRequest{}
			if request.Certificate, request.Key, err = signing.Encode(); err != nil {
				return err
			}
			done, err := ask.Meant(c, cmd, request, client.SetSigningAuthority)
			if err != nil {
				return err
			}
			return c.PrintOutcome(cmd, done)
		},
	}
	cmd.Flags().UintVar(&days, "days", 0, "how long the signing authority is valid (default: as long as the authority)")
	c.MayHarm(cmd)
	c.CanPlan(cmd)
	return cmd
}
