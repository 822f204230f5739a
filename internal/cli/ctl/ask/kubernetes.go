// Services of Kubernetes by its names: NAMESPACE/NAME, of a Service or a Gateway. No name of a fleet has a slash.
package ask

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
)

// TakeKubernetesNames has operands and flags that name services, of all commands below cmd, take NAMESPACE/NAME.
func (c *Control) TakeKubernetesNames(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		c.TakeKubernetesNames(child)
	}
	var at []int
	for i, operand := range command.Operands(cmd) {
		operand = strings.Trim(operand, "[]")
		if operand == "SERVICE" || operand == "NAME" && cmd.Parent() != nil && cmd.Parent().Name() == "service" && cmd.Name() != "add" {
			at = append(at, i)
		}
	}
	run, flag := cmd.RunE, cmd.Flags().Lookup("service")
	if run == nil || len(at) == 0 && flag == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, i := range at {
			if i < len(args) {
				if err := c.translate(cmd, args[i], func(name string) error { args[i] = name; return nil }); err != nil {
					return err
				}
			}
		}
		if flag != nil {
			if err := c.translate(cmd, flag.Value.String(), flag.Value.Set); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
}

// translate puts the fleet's name of a service in the place of Kubernetes'.
func (c *Control) translate(cmd *cobra.Command, name string, put func(string) error) error {
	if !strings.Contains(name, "/") {
		return nil
	}
	fleet, err := Fleet(c, cmd, ballastv1connect.FleetClient.GetFleet, &ballastv1.GetFleetRequest{})
	if err != nil {
		return err
	}
	whole := model.FromPeople(name)
	// [PREFIX:]NAMESPACE:NAME:tcp, of a Gateway's listener with :PORT
	shape := regexp.MustCompile("(^|:)" + regexp.QuoteMeta(whole) + `(:(tcp|udp))?(:[0-9]+)?$`)
	var found []string
	for _, s := range fleet.Services {
		if s.Name == whole { // what people have read
			return put(whole)
		}
		if s.GetOwner() != "" && shape.MatchString(s.Name) {
			found = append(found, s.Name)
		}
	}
	switch len(found) {
	case 0:
		return command.NotFound("the fleet has no service of Kubernetes' %s: see `ballast ctl service list`", name)
	case 1:
		return put(found[0])
	}
	return command.Usage("%s is several services: name one of %s", name, model.Some(found))
}
