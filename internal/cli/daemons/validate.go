// ballast validate: what a daemon would say of a configuration file, without a daemon.
package daemons

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// validation is one `ballast validate`.
type validation struct {
	role, server string
	limits       plan.Limits
	output       *command.Output
}

// validated is what --json prints.
type validated struct {
	File     string      `json:"file"`
	Role     string      `json:"role"`
	Valid    bool        `json:"valid"`
	Services int         `json:"services"`
	Servers  int         `json:"servers"`
	Errors   []objection `json:"errors"`
	Warnings []string    `json:"warnings"`
}

// objection is one thing that a daemon would refuse the file for.
type objection struct {
	Line    int    `json:"line,omitempty"` // 0: it is not of one place
	Path    string `json:"path,omitempty"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
	text    string
}

// Validate makes `ballast validate`.
func Validate() *cobra.Command {
	v := validation{role: "lb"}
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a configuration file, as the daemons would",
		RunE:  func(cmd *cobra.Command, args []string) error { return v.run(cmd, args[0]) },
	}
	cmd.Flags().Var(command.OneOf(&v.role, "lb", "agent", "fleet"), "role", "lb, agent or fleet")
	cmd.Flags().StringVar(&v.server, "server", "", "role agent: `NAME` of the host's servers in the file")
	v.output = command.NewOutput(cmd.Flags())
	limitFlags(cmd.Flags(), &v.limits)
	return cmd
}

func (v *validation) run(cmd *cobra.Command, file string) error {
	if v.server != "" && v.role != "agent" {
		return command.Usage("--server is of a host with --role agent: give both")
	}
	if err := checkLimits(cmd.Flags(), &v.limits); err != nil {
		return err
	}
	text, err := command.ReadUpTo(cmd, file, config.MaxBytes+1)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	fleet, err := v.parse(file, text)
	warnings := []string{}
	if exposed := config.Exposed(file); err == nil && v.role != "fleet" && exposed != "" {
		warnings = append(warnings, exposed)
	}
	if err == nil {
		err = v.fits(&fleet)
	}
	answer := validated{File: file, Role: v.role, Valid: err == nil, Services: len(fleet.Services), Errors: objections(err), Warnings: append(warnings, v.warnings(&fleet)...)}
	for i := range fleet.Services {
		answer.Servers += len(fleet.Services[i].Servers)
	}
	if v.output.Structured() {
		err = v.output.Write(cmd.OutOrStdout(), answer)
	} else {
		err = answer.print(cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	if err == nil && !answer.Valid {
		return command.ExitStatus(command.StatusFailed)
	}
	return err
}

// parse reads a fleet as the role's daemon does.
func (v *validation) parse(name string, text []byte) (model.Fleet, error) {
	if name == "-" {
		name = "standard input"
	}
	if v.role != "fleet" {
		return config.Parse(name, text)
	}
	draft, err := config.ParseDraft(name, text)
	if err != nil {
		return model.Fleet{}, err
	}
	return draft.Fleet, draft.Validate()
}

// fits does with the fleet what the role's daemon would do before it writes to any table.
func (v *validation) fits(file *model.Fleet) error {
	switch v.role {
	case "agent":
		wanted, err := plan.NewAgent(file, v.mine)
		if err != nil {
			return err
		}
		return cmp.Or(file.CheckSourcesWithoutControllers(), wanted.KnowsLoadBalancers(file))
	case "lb":
		if err := file.CheckWithoutControllers(); err != nil {
			return err
		}
		var n fleet.Desired
		if _, err := n.EditFile(*file, time.Now()); err != nil {
			return err
		}
		want := plan.Want{Keys: file.Keys}
		for _, s := range n.Running.Services {
			want.Services = append(want.Services, plan.Service{Service: s})
		}
		_, err := plan.NewTables(v.limits.Or(plan.LimitsFor(n.Running.Services))).Update(&want)
		return err
	}
	return nil
}

func (v *validation) mine(s *model.Server) bool { return v.server != "" && s.Name == v.server }

func (v *validation) warnings(fleet *model.Fleet) (warnings []string) {
	here := false
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if !slices.ContainsFunc(s.Servers, func(server model.Server) bool { return server.TakesNew() }) && s.Source.IsZero() && !fleet.OnlyReturns(s) {
			warnings = append(warnings, fmt.Sprintf("service %s: no server takes new connections", s.Name))
		}
		if blind := fleet.CheckedBlindly(s); len(blind) > 0 {
			warnings = append(warnings, fmt.Sprintf("service %s: check %s sees neither the tunnel to %s nor the VIP there: use udp, dns or quic, or the port of a TCP service with the same VIP on the same servers",
				s.Name, s.Health.Check, strings.Join(blind, ", ")))
		}
		here = here || slices.ContainsFunc(s.Servers, func(server model.Server) bool { return v.mine(&server) })
	}
	if v.server != "" && !here && len(fleet.Services) > 0 {
		warnings = append(warnings, fmt.Sprintf("no service has a server %q: an agent with --server %s does nothing", v.server, v.server))
	}
	return warnings
}

// objections takes an error apart.
func objections(err error) []objection {
	list := []objection{}
	if err == nil {
		return list
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			list = append(list, objections(one)...)
		}
		return list
	}
	o := objection{Problem: err.Error(), text: err.Error()}
	var placed *config.Error
	var invalid *model.Invalid
	if errors.As(err, &placed) {
		o.Line = placed.Line
	}
	if errors.As(err, &invalid) {
		o.Path, o.Problem, o.Remedy = invalid.Path, invalid.Problem, invalid.Remedy
	}
	return append(list, o)
}

func (v *validated) print(out, stderr io.Writer) error {
	for _, o := range v.Errors {
		fmt.Fprintln(stderr, o.text)
	}
	for _, warning := range v.Warnings {
		fmt.Fprintln(stderr, "warning:", warning)
	}
	if !v.Valid {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s: valid for role %s: %s, %s\n", v.File, v.Role, model.Counted(v.Services, "service", "services"), model.Counted(v.Servers, "server", "servers"))
	return err
}
