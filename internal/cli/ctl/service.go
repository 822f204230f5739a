package ctl

import (
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// serviceFlags makes a flag of every field of a service; those that are given are in the service once the command runs.
func serviceFlags(cmd *cobra.Command) *ballastv1.Service {
	s := &ballastv1.Service{}
	fieldFlags(cmd, schema.Service[1:], model.NewService(), s, api.ServiceToProto) // the name is an argument
	return s
}

func (c *control) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Add, change or remove services",
		Long: `Add, change or remove services. Agents without controllers know services from their file only: a service with return: direct must
be in the agents' files, with the same choices, before clients are sent to it.`,
	}
	set := c.serviceSetCommand()
	remove := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
		Long: `Remove a service with its servers at once. Packets for its address are no longer steered but go to the host, so connections
that it still has end. To end them gently, drain its servers first ("server drain --wait").`,
		Example: `  ballast ctl service remove shop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
				return fleet.RemoveService(cmd.Context(), &ballastv1.RemoveServiceRequest{Service: args[0], Force: force})
			})
		},
	}
	c.mayHarm(set, remove)
	cmd.AddCommand(c.serviceAddCommand(), set, remove)
	return cmd
}

// putService sends a service that exists, or that does not.
func (c *control) putService(cmd *cobra.Command, s *ballastv1.Service, exists bool) error {
	return c.change(cmd, func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
		return fleet.PutService(cmd.Context(), &ballastv1.PutServiceRequest{Service: s, Exists: &exists, Force: force})
	})
}

func (c *control) serviceAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME --vip ADDRESS --port PORT[,PORT]",
		Short: "Add a service, without servers at first",
		Long: `Add a service. It has no servers at first and drops what comes for it until "server add" gives it some. What is not given is
chosen as in the configuration file. A combination that cannot work is refused with the reason.`,
		Example: `  ballast ctl service add web --vip 198.51.100.10 --port 80,443
  ballast ctl service add dns --vip 2001:db8::53 --port 53 --protocol udp
  ballast ctl service add shop --vip 198.51.100.11 --port 443 --dispatch awfd --check http --check-path /healthz
  ballast ctl service add nat --vip 198.51.100.12 --port 443 --dispatch p2c --return through`,
	}
	s := serviceFlags(cmd)
	cmd.MarkFlagRequired("vip")
	cmd.MarkFlagRequired("port")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.Name = args[0]
		return c.putService(cmd, s, false)
	}
	return cmd
}

func (c *control) serviceSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME [--CHOICE VALUE]...",
		Short: "Change choices of a service; those not given stay",
		Long: `Change choices of a service. Those not given stay as they are: nothing falls back to a default. Several that only work together
are given together. A combination that cannot work is refused with the reason, and nothing changes. Another --check or
--load-source leaves behind what only the one before had use for.

Connections with cookies outlive changes of --dispatch, --fallback and --table-slots, and of --forward unless from or to nat. They
do not outlive changes of --vip, --protocol, --affinity and --return, or of --port for ports that are taken away; but from --affinity
cookie to table they do. Agents without controllers read these from their own files: change them there too, and repeat the command on
the other load balancers. --cookie-bits, --table-index-bits and --table-node-bits can change together with --vip only: connections
carry cookies of the old widths.

What connections do not outlive, and --affinity cookie to table, which cannot be taken back while the service keeps its --vip, is asked about
first; elsewhere than at a terminal it needs --yes.`,
		Example: `  ballast ctl service set web --dispatch p2c
  ballast ctl service set web --affinity hash --dispatch maglev
  ballast ctl service set web --dispatch awfd --load-source cpu --load-interval 100ms
  ballast ctl service set web --affinity table --table-entries 1048576
  ballast ctl service set web --check tcp --all-down none`,
	}
	s := serviceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if proto.Size(s) == 0 {
			return command.Usage("nothing to change is given: see `ballast ctl service set --help`")
		}
		s.Name = args[0]
		return c.putService(cmd, s, true)
	}
	return cmd
}
