// Services: services, service add|set|remove.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// Services makes `ballast ctl services`.
func Services(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{
		Use: "services", Short: "The services and how they are served",
		Long: "The services and how they are served. With --json, a load balancer adds what it counted.",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if c.JSON {
			if counted, err := countedHere(cmd.Context(), c); err != nil {
				return err
			} else if counted != nil {
				return command.WriteJSON(cmd.OutOrStdout(), counted)
			}
		}
		wanted, err := wantedFleet(c, cmd)
		if err != nil {
			return err
		}
		return command.Print(cmd.OutOrStdout(), c.JSON, command.NonNil(wanted.Services), func(table *command.Table, services []model.Service) {
			table.Row("SERVICE\tVIP\tPROTOCOL\tPORTS\tDISPATCH\tAFFINITY\tFALLBACK\tFORWARD\tRETURN\tCHECK\tSERVERS")
			for _, s := range services {
				ports := strings.Trim(fmt.Sprint(s.Ports), "[]")
				table.Row(s.Name, s.VIP, s.Protocol, ports, s.Dispatch, s.Affinity, s.Fallback, s.Forward, s.Return, s.Health.Check, len(s.Servers))
			}
		})
	}
	return cmd
}

// countedHere is what the load balancer of this machine counted; nil where none is asked.
func countedHere(ctx context.Context, c *ask.Control) (services []api.ServiceStatus, err error) {
	client, err := c.Local()
	if err != nil {
		return nil, nil
	}
	err = client.Get(ctx, api.PathServices, &services)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == http.StatusNotFound { // a controller
		return nil, nil
	}
	return services, err
}

// Service makes `ballast ctl service`.
func Service(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Add, change or remove services",
		Long: `Add, change or remove services. Agents without controllers know services from their file only: a service with return: direct must
be in the agents' files, with the same choices, before clients are sent to it.`,
	}
	set := put(c, true, &cobra.Command{
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
	})
	remove := ask.Changing(c, &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
		Long: `Remove a service with its servers at once. Packets for its address are no longer steered but go to the host, so connections
that it still has end. To end them gently, drain its servers first ("server drain --wait").`,
		Example: `  ballast ctl service remove shop`,
	}, ballastv1connect.FleetClient.RemoveService, func(args []string) (*ballastv1.RemoveServiceRequest, error) {
		return &ballastv1.RemoveServiceRequest{Service: args[0]}, nil
	})
	add := put(c, false, &cobra.Command{
		Use:   "add NAME --vip ADDRESS --port PORT[,PORT]",
		Short: "Add a service, without servers at first",
		Long: `Add a service. It has no servers at first and drops what comes for it until "server add" gives it some. What is not given is
chosen as in the configuration file. A combination that cannot work is refused with the reason.`,
		Example: `  ballast ctl service add web --vip 198.51.100.10 --port 80,443
  ballast ctl service add dns --vip 2001:db8::53 --port 53 --protocol udp
  ballast ctl service add shop --vip 198.51.100.11 --port 443 --dispatch awfd --check http --check-path /healthz
  ballast ctl service add nat --vip 198.51.100.12 --port 443 --dispatch p2c --return through`,
	})
	command.Require(add, "vip", "port")
	c.MayHarm(set, remove)
	cmd.AddCommand(add, set, remove)
	return cmd
}

// put completes a command that sends a service, which exists or does not, with a flag for every field.
func put(c *ask.Control, exists bool, cmd *cobra.Command) *cobra.Command {
	s := &ballastv1.Service{}
	fieldFlags(cmd, schema.Service[1:], model.NewService(), s, api.ServiceToProto) // the name is an argument
	return ask.Changing(c, cmd, ballastv1connect.FleetClient.PutService, func(args []string) (*ballastv1.PutServiceRequest, error) {
		if exists && proto.Size(s) == 0 {
			return nil, command.Usage("nothing to change is given: see `ballast ctl service set --help`")
		}
		s.Name = args[0]
		return &ballastv1.PutServiceRequest{Service: s, Exists: &exists}, nil
	})
}
