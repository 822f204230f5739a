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
	cmd := &cobra.Command{Use: "services", Short: "The services and how they are served"}
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
				if s.Functions() {
					ports = "all"
				}
				table.Row(s.Name, s.Where(), s.Protocol, ports, s.Dispatch, s.Affinity, s.Fallback, s.Forward, s.Return, s.Health.Check, len(s.Servers))
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
	cmd := &cobra.Command{Use: "service", Short: "Add, change or remove services"}
	set := put(c, true, &cobra.Command{Use: "set NAME [--CHOICE VALUE]...", Short: "Change choices of a service; those not given stay"})
	remove := ask.Changing(c, &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
	}, ballastv1connect.FleetClient.RemoveService, func(args []string) (*ballastv1.RemoveServiceRequest, error) {
		return &ballastv1.RemoveServiceRequest{Service: args[0]}, nil
	})
	add := put(c, false, &cobra.Command{Use: "add NAME --vip ADDRESS --port PORT[,PORT]", Short: "Add a service, without servers at first"})
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
		for flag, given := range map[string]bool{"vip": s.Vip != "", "port": len(s.Ports) > 0} {
			if !exists && !given && s.Destinations == "" {
				return nil, command.Usage("required flag \"%s\" not set: a service of network functions has --destinations instead", flag)
			}
		}
		s.Name = args[0]
		return &ballastv1.PutServiceRequest{Service: s, Exists: &exists}, nil
	})
}
