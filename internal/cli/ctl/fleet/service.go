// Services: service list|show|add|set|remove.
package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
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

// services are as they are wanted, or, for programs, as a load balancer of this machine serves them.
type services struct {
	wanted  []model.Service
	counted []api.ServiceStatus
}

// MarshalJSON has what was counted where it was.
func (s services) MarshalJSON() ([]byte, error) {
	if s.counted != nil {
		return json.Marshal(s.counted)
	}
	return json.Marshal(command.NonNil(s.wanted))
}

// ListServices makes `ballast ctl service list`.
func ListServices(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "list", Short: "List services"}, c.Output,
		func(cmd *cobra.Command, _ []string) (services, error) { return findServices(c, cmd) }, printServices)
}

// service is one of services.
type service struct{ services }

// MarshalJSON has the one.
func (s service) MarshalJSON() ([]byte, error) {
	if len(s.counted) > 0 {
		return json.Marshal(s.counted[0])
	}
	return json.Marshal(s.wanted[0])
}

// showService makes `ballast ctl service show`.
func showService(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "show NAME", Short: "Show all fields of a service"}, c.Output,
		func(cmd *cobra.Command, args []string) (service, error) {
			all, err := findServices(c, cmd)
			if err != nil {
				return service{}, err
			}
			all.wanted = slices.DeleteFunc(all.wanted, func(s model.Service) bool { return s.Name != args[0] })
			all.counted = slices.DeleteFunc(all.counted, func(s api.ServiceStatus) bool { return s.Name != args[0] })
			if len(all.wanted)+len(all.counted) == 0 {
				return service{}, command.NotFound("there is no service %q: see `ballast ctl service list`", args[0])
			}
			return service{all}, nil
		}, command.One(func(table *command.Table, one service) { printServices(table, one.services) }))
}

func findServices(c *ask.Control, cmd *cobra.Command) (found services, err error) {
	if c.Structured() {
		if found.counted, err = countedHere(cmd.Context(), c); err != nil || found.counted != nil {
			return found, err
		}
	}
	wanted, err := fleetAt(c, cmd, 0)
	if err != nil {
		return found, err
	}
	found.wanted = wanted.Services
	if slices.ContainsFunc(found.wanted, func(s model.Service) bool { return s.Predecessor.Exists() }) {
		found.counted, err = countedHere(cmd.Context(), c)
	}
	return found, err
}

// predecessor is what people read of that of a service; the connections that go on to it are known where a load balancer is asked.
func (s services) predecessor(one *model.Service) string {
	p := &one.Predecessor
	if !p.Exists() {
		return "-"
	}
	text := fmt.Sprintf("%s by %s, share %s", strings.Trim(fmt.Sprint(p.Addresses), "[]"), p.Forward, p.Share)
	at := slices.IndexFunc(s.counted, func(counted api.ServiceStatus) bool { return counted.Name == one.Name })
	if at < 0 || s.counted[at].PredecessorConnections == nil {
		return text
	}
	counted := &s.counted[at]
	text += fmt.Sprintf(", %d connections in a minute", *counted.PredecessorConnections)
	for _, path := range counted.PredecessorPaths {
		if path.Lost != "" {
			text += fmt.Sprintf(", lost to %s: %s", path.Address, path.Lost)
		}
	}
	if back := counted.Verdicts["dropped_predecessor_loop"].Packets; back > 0 {
		text += fmt.Sprintf(", %d packets came back", back)
	}
	return text
}

func printServices(table *command.Table, all services) {
	head := "SERVICE\tVIP\tPROTOCOL\tPORTS\tDISPATCH\tAFFINITY\tFORWARD\tRETURN\tCHECK\tSERVERS"
	if table.Wide {
		head += "\tFALLBACK\tSESSION\tSYN PROXY\tALL DOWN\tOWNER\tSERVERS FROM\tPREDECESSOR"
	}
	table.Row(head)
	for i := range all.wanted {
		s := &all.wanted[i]
		ports := s.PortsText()
		if s.Functions() {
			ports = "all"
		}
		cells := []any{s.Name, s.Where(), s.Protocol, ports, s.Dispatch, s.Affinity, s.Forward, s.Return, s.Health.Check, len(s.Servers)}
		if table.Wide {
			cells = append(cells, s.Fallback, s.Session, s.SYNProxy, s.Health.AllDown, cmp.Or(s.Owner, "-"), s.Source, all.predecessor(s))
		}
		table.Row(cells...)
	}
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
	cmd := &cobra.Command{Use: "service", Short: "Manage services"}
	set := put(c, true, &cobra.Command{Use: "set NAME [--CHOICE VALUE]...", Short: "Change fields of a service; others stay"})
	remove := ask.Changing(c, &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a service with its servers at once: its packets go to the host, its connections end",
	}, ballastv1connect.FleetClient.RemoveService, func(args []string) (*ballastv1.RemoveServiceRequest, error) {
		return &ballastv1.RemoveServiceRequest{Service: args[0]}, nil
	})
	add := put(c, false, &cobra.Command{Use: "add NAME --vip ADDRESS --port PORT[,PORT]", Short: "Add a service, without servers at first"})
	c.MayHarm(set, remove)
	cmd.AddCommand(ListServices(c), showService(c), add, set, remove)
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
		for flag, given := range map[string]bool{"vip": s.Vip != "" || len(s.Vips) > 0, "port": len(s.Ports)+len(s.PortRanges) > 0} {
			if !exists && !given && s.Destinations == "" {
				return nil, command.Usage("required flag \"%s\" not set: a service of network functions has --destinations instead", flag)
			}
		}
		s.Name = args[0]
		return &ballastv1.PutServiceRequest{Service: s, Exists: &exists}, nil
	})
}
