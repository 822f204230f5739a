// Who is asked: flags say it, else the environment, else a context, else it is the local daemon.
package ask

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ContextVariable names a context, where --context does not.
const ContextVariable = "BALLAST_CONTEXT"

// A setting is a flag, the variable that speaks in its place, and what a context says of it.
type setting struct {
	flag, variable string
	who            bool // it says who is asked: such are not mixed from several places
	of             func(*Context) string
}

var settings = []setting{
	{"controller", "BALLAST_CONTROLLER", true, func(c *Context) string { return strings.Join(c.Controllers, ",") }},
	{"instance", "BALLAST_INSTANCE", true, func(c *Context) string { return c.Instance }},
	{"socket", "BALLAST_SOCKET", true, func(c *Context) string { return c.Socket }},
	{"run-dir", "BALLAST_RUN_DIR", false, func(c *Context) string { return c.RunDir }},
	{"tls-dir", "BALLAST_TLS_DIR", false, func(c *Context) string { return c.TLSDir }},
	{"tls-name", "BALLAST_TLS_NAME", false, func(c *Context) string { return c.TLSName }},
}

// ChosenContext is the name of the context that is used, and what chose it; none has an empty name.
func (c *Control) ChosenContext(all *Contexts) (name, by string) {
	if name, by, named := c.namedContext(); named {
		return name, by
	}
	return all.Current, "`ballast ctl context use`"
}

// namedContext is what --context or the variable says; an empty name is none, whatever the file says.
func (c *Control) namedContext() (name, by string, named bool) {
	if c.flags.Changed("context") {
		return c.context, "--context", true
	}
	name, named = os.LookupEnv(ContextVariable)
	return name, ContextVariable, named
}

// target fills in what no flag says, once.
func (c *Control) target() error {
	if !c.resolved {
		c.resolved, c.refused = true, c.fill()
	}
	return c.refused
}

func (c *Control) fill() error {
	named := slices.ContainsFunc(settings, func(s setting) bool { return s.who && c.flags.Changed(s.flag) })
	byContext := c.flags.Changed("context") && c.context != "" // a flag, too: it goes before variables
	byVariable := !named && !byContext && slices.ContainsFunc(settings, func(s setting) bool { return s.who && os.Getenv(s.variable) != "" })
	context, by, err := c.usedContext(!named && !byVariable)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if c.flags.Changed(s.flag) || named && s.who {
			continue
		}
		value, origin := s.of(context), by
		switch variable := os.Getenv(s.variable); {
		case s.who && !byVariable, byContext && value != "":
		case s.who, variable != "":
			value, origin = variable, s.variable
		}
		if value == "" {
			continue
		}
		if err := c.flags.Lookup(s.flag).Value.Set(value); err != nil {
			return command.Usage("%s: %s %q: %w", origin, s.flag, value, err)
		}
		c.origins = append(c.origins, fmt.Sprintf("%s %s by %s", s.flag, value, origin))
	}
	return nil
}

// usedContext is the context that is used: one that --context names, else the chosen one if nothing else says who is asked.
func (c *Control) usedContext(wanted bool) (context *Context, by string, err error) {
	name, _, named := c.namedContext()
	switch {
	case !wanted && !c.flags.Changed("context"), named && name == "":
		return &Context{}, "", nil
	case !named && os.Getenv("HOME") == "" && os.Getenv("XDG_CONFIG_HOME") == "": // a service of the system
		return &Context{}, "", nil
	}
	all, err := LoadContexts()
	if err != nil {
		return nil, "", err
	}
	name, chosen := c.ChosenContext(all)
	if name == "" {
		return &Context{}, "", nil
	}
	found, known := all.Contexts[name]
	if !known {
		return nil, "", command.NotFound("there is no context %q, which %s names: see `ballast ctl context list`", name, chosen)
	}
	return &found, "context " + name, nil
}

// elsewhere adds, where another daemon than a load balancer was asked for what only these serve, which of them are on this machine.
func (c *Control) elsewhere(ctx context.Context, err error) error {
	var refused *api.Error
	if !errors.As(err, &refused) || !refused.Unserved() {
		return err
	}
	isLB := func(client *api.Client) bool {
		ctx, cancel := context.WithTimeout(ctx, completionTime)
		defer cancel()
		status, err := client.Status(ctx)
		return err == nil && status.Role == string(pki.LB)
	}
	if isLB(c.daemon()) {
		return err
	}
	var found []string
	for _, name := range instances(c, nil, ctx, nil) {
		if isLB(api.NewClient(api.SocketPath(c.runDir, name))) {
			found = append(found, "--instance "+name)
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%w (no load balancer answers below %s)", err, c.runDir)
	}
	return fmt.Errorf("%w (load balancers on this machine: %s)", err, strings.Join(found, ", "))
}

// Unasked are the other instances of this machine, where no flag, variable or context says which one is asked.
func (c *Control) Unasked() []string {
	if c.socket != "" || c.flags.Changed("instance") || len(c.origins) > 0 {
		return nil
	}
	return slices.DeleteFunc(instances(c, nil, context.Background(), nil), func(name string) bool { return name == c.instance })
}

// At is the daemon of an instance of this machine.
func (c *Control) At(instance string) *api.Client {
	return api.NewClient(api.SocketPath(c.runDir, instance))
}

// Explain makes all commands below cmd say, when they fail, where what they were told comes from, and who could have been asked.
func (c *Control) Explain(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		c.Explain(child)
	}
	run := cmd.RunE
	if run == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err != nil {
			err = c.elsewhere(cmd.Context(), err)
		}
		var answer command.ExitStatus
		if err == nil || len(c.origins) == 0 || errors.As(err, &answer) {
			return err
		}
		return fmt.Errorf("%w (%s)", err, strings.Join(c.origins, "; "))
	}
}

// PutGiven puts what flags say into a context; an empty value takes away what it said.
func (c *Control) PutGiven(context *Context) error {
	given := false
	for flag, put := range map[string]func(){
		"controller": func() { context.Controllers = c.controllers }, "instance": func() { context.Instance = c.instance },
		"socket": func() { context.Socket = c.socket }, "run-dir": func() { context.RunDir = c.runDir },
		"tls-dir": func() { context.TLSDir = c.tlsDir }, "tls-name": func() { context.TLSName = c.tlsName },
	} {
		if c.flags.Changed(flag) {
			put()
			given = true
		}
	}
	if !given {
		return command.Usage("nothing is given to set: say --controller, --tls-dir, --tls-name, --instance, --socket or --run-dir")
	}
	if len(context.Controllers) > 0 && (context.Socket != "" || context.Instance != "") {
		return command.Usage("a context asks controllers or a local daemon: take one away with --controller '', --instance '' or --socket ''")
	}
	if len(context.Controllers) == 0 {
		return nil
	}
	_, err := command.Controllers("controller", context.Controllers)
	return err
}
