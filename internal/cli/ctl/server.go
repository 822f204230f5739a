package ctl

import (
	"context"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

func (c *control) serverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Add, drain, remove or weigh servers",
		Example: `  ballast ctl server add web 10.0.0.13 --name s3
  ballast ctl server drain web s3 --deadline 10m --wait
  ballast ctl server remove web s3`,
	}
	undrain := c.serverAction("undrain", "Give a drained server new connections again", ballastv1connect.FleetClient.UndrainServer)
	undrain.Long = "Give a server that is draining, or that is off because its deadline has passed, new connections again."
	remove := c.serverAction("remove", "Remove a server; the connections it has stay until they end", ballastv1connect.FleetClient.RemoveServer)
	remove.Long = `Remove a server. It gets no new connections; those that it has stay until they end, or have been silent for long (--linger of the
daemon). Until then "servers" lists it as removed, and nobody else gets its id.`
	drain, weight := c.serverDrainCommand(), c.serverWeightCommand()
	c.mayHarm(drain, remove, weight)
	cmd.AddCommand(c.serverAddCommand(), drain, undrain, remove,
		c.serverAction("forget", "Give up a removed server at once: connections it still has break, its id is free", ballastv1connect.FleetClient.ForgetServer), weight)
	return cmd
}

type serverCall func(ballastv1connect.FleetClient, context.Context, *ballastv1.ServerRequest) (*ballastv1.ChangeResponse, error)

func (c *control) serverAction(action, short string, call serverCall) *cobra.Command {
	return &cobra.Command{
		Use:   action + " SERVICE SERVER",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
				return call(fleet, cmd.Context(), &ballastv1.ServerRequest{Service: args[0], Server: args[1], Force: force})
			})
		},
	}
}

func (c *control) serverWeightCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "weight SERVICE SERVER WEIGHT",
		Short: "Change a server's weight (0: no new connections)",
		RunE: func(cmd *cobra.Command, args []string) error {
			weight, err := strconv.ParseUint(args[2], 10, 16)
			if err != nil {
				return command.Usage("weight %s: use a number from 0 to %d", args[2], model.MaxWeight)
			}
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
				return fleet.WeighServer(cmd.Context(), &ballastv1.WeighServerRequest{Service: args[0], Server: args[1], Weight: uint32(weight), Force: force})
			})
		},
	}
}

func (c *control) serverAddCommand() *cobra.Command {
	server := &ballastv1.Server{}
	cmd := &cobra.Command{
		Use:   "add SERVICE ADDRESS",
		Short: "Add a server",
		Long: `Add a server. Without --id it gets the id that it had if it was removed lately, else the next one that no server of the service
has, or had lately. The id is printed. Without controllers it must be the same on every load balancer and in the server's own
agent file.

It gets new connections at once: a server counts as healthy until its checks have failed. To wait for the first checks, add it with
--weight 0, and give it its weight once "servers" says healthy.`,
		Example: `  ballast ctl server add web 10.0.0.13 --name s3 --weight 2`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := netip.ParseAddr(args[1]); err != nil {
				return command.Usage("address %s: %w", args[1], err)
			}
			server.Address = args[1]
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, _ bool) (*ballastv1.ChangeResponse, error) {
				return fleet.AddServer(cmd.Context(), &ballastv1.AddServerRequest{Service: args[0], Server: server})
			})
		},
	}
	fieldFlags(cmd, schema.Named(schema.Server, "name", "id", "port", "weight"), model.NewServer(), server, api.ServerToProto)
	return cmd
}
