// ctl node forget: each controller remembers for itself who was connected to it.
package ctl

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

func (c *control) nodeForgetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forget NAME",
		Short: "Take a node that is lost and does not come back off the list of nodes",
		Long: `Take a node that is lost and does not come back off the list of nodes, where it would be for a day and hold key rotations up: what
it has pinned may go on with the keys that it had, so take it out of the routers, or switch it off, first. Each controller
remembers for itself: all of those given by --controller are asked. It is refused by those that the node is connected to.`,
		Example: `  ballast ctl --controller c1,c2,c3 node forget lb7`,
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := c.everyController(cmd)
			if err != nil {
				return err
			}
			done, err := forgetNode(cmd.Context(), asked, args[0])
			if len(done.Changes) == 0 {
				return err
			}
			if n := controllersOf(cmd.Context(), asked[0].fleet); n > len(asked) {
				fmt.Fprintf(cmd.ErrOrStderr(), "only %d of %d controllers were asked: the others remember it still: name all with --controller\n", len(asked), n)
			}
			return errors.Join(c.print(cmd.OutOrStdout(), done), err)
		},
	}
}

// askedController is one whose own memory is asked; without a name, that of this machine.
type askedController struct {
	name  string
	fleet ballastv1connect.FleetClient
}

func (c *control) everyController(cmd *cobra.Command) (asked []askedController, err error) {
	if len(c.controllers) == 0 {
		fleet, err := c.fleet(cmd)
		return []askedController{{fleet: fleet}}, err
	}
	var names []string
	var credentials *pki.Credentials
	if names, credentials, err = c.named(); err != nil {
		return nil, err
	}
	for _, name := range names {
		asked = append(asked, askedController{name, api.NewFleetClient([]string{name}, credentials.Client(), warnOfOld(cmd))})
	}
	return asked, nil
}

// forgetNode asks all. That some do not know the node is no failure, if any does.
func forgetNode(ctx context.Context, asked []askedController, node string) (done outcome, err error) {
	var unknown error
	for _, one := range asked {
		answer, refused := one.fleet.ForgetNode(ctx, &ballastv1.NodeRequest{Node: node})
		if refused != nil && one.name != "" {
			refused = fmt.Errorf("%s: %w", one.name, refused)
		}
		switch {
		case connect.CodeOf(refused) == connect.CodeNotFound && refused != nil:
			unknown = refused
		case refused != nil:
			err = errors.Join(err, refused)
		default:
			for _, line := range answer.Changes {
				if one.name != "" {
					line = one.name + ": " + line
				}
				done.Changes = append(done.Changes, line)
			}
		}
	}
	if err == nil && len(done.Changes) == 0 {
		err = unknown
	}
	return done, err
}

// controllersOf counts those that live, as one of them knows.
func controllersOf(ctx context.Context, fleet ballastv1connect.FleetClient) (n int) {
	nodes, err := fleet.ListNodes(ctx, &ballastv1.ListNodesRequest{})
	if err != nil {
		return 0
	}
	for _, node := range nodes.Nodes {
		if node.Role == string(pki.Controller) && node.Ready == "yes" {
			n++
		}
	}
	return n
}
