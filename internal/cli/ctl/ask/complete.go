// Completion by a shell of what daemons know. It never hangs and never complains: where nobody answers in time, nothing is suggested.
package ask

import (
	"context"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// completionTime is how long a shell waits.
const completionTime = 500 * time.Millisecond

// words are suggested; args are those before.
type words func(c *Control, fleet ballastv1connect.FleetClient, ctx context.Context, args []string) []string

// known are the words for operands, by the noun where a NAME is of several things.
var known = map[string]words{
	"SERVICE": services, "service NAME": services, "SERVER": servers, "node NAME": nodes(), "replica NAME": nodes(), "context NAME": contexts,
	"controller NAME": nodes(string(pki.Controller)), "pki NAME|SERIAL|FILE.crt": nodes(),
}

// Complete makes the operands and flags of all commands below cmd complete.
func (c *Control) Complete(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		c.Complete(child)
	}
	names := command.Operands(cmd)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = func(asked *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(names) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			name := names[len(args)]
			if find := knownFor(cmd, name); find != nil {
				return c.suggest(asked, find, args), cobra.ShellCompDirectiveNoFileComp
			}
			if name == "DIR" {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, find := range map[string]words{"service": services, "instance": instances, "context": contexts} {
		if cmd.LocalNonPersistentFlags().Lookup(flag) == nil && cmd.PersistentFlags().Lookup(flag) == nil {
			continue
		}
		err := cmd.RegisterFlagCompletionFunc(flag, func(asked *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return c.suggest(asked, find, nil), cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err)
		}
	}
}

// knownFor finds the words for an operand of a command: [SERVICE] is a SERVICE.
func knownFor(cmd *cobra.Command, operand string) words {
	if operand[0] == '[' {
		operand = operand[1 : len(operand)-1]
	}
	if find := known[operand]; find != nil {
		return find
	}
	if cmd.Name() == "add" || cmd.Name() == "set" && cmd.Parent().Name() == "context" {
		return nil // a new name
	}
	return known[cmd.Parent().Name()+" "+operand]
}

// suggest asks within its time.
func (c *Control) suggest(cmd *cobra.Command, find words, args []string) []string {
	cmd.SetErr(io.Discard) // what is read may be old: that is no matter here
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	found := make(chan []string, 1)
	go func() { // names of hosts are looked up, and certificates read
		fleet, err := c.Fleet(cmd)
		if err != nil {
			fleet = nil
		}
		found <- find(c, fleet, ctx, args)
	}()
	select {
	case names := <-found:
		return names
	case <-ctx.Done():
		return nil
	}
}

func services(_ *Control, fleet ballastv1connect.FleetClient, ctx context.Context, _ []string) (names []string) {
	if fleet == nil {
		return nil
	}
	answer, err := fleet.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if err != nil {
		return nil
	}
	for _, s := range answer.Services {
		names = append(names, model.ForPeople(s.Name))
	}
	return names
}

func servers(_ *Control, fleet ballastv1connect.FleetClient, ctx context.Context, args []string) (names []string) {
	if fleet == nil || len(args) == 0 {
		return nil
	}
	answer, err := fleet.ListServers(ctx, &ballastv1.ListServersRequest{Service: model.FromPeople(args[0])})
	if err != nil {
		return nil
	}
	for _, s := range answer.Servers {
		names = append(names, s.Server.GetName())
	}
	return names
}

// nodes are those of some roles, as pki names them, or of all.
func nodes(roles ...string) words {
	return func(_ *Control, fleet ballastv1connect.FleetClient, ctx context.Context, _ []string) (names []string) {
		if fleet == nil {
			return nil
		}
		answer, err := fleet.ListNodes(ctx, &ballastv1.ListNodesRequest{})
		if err != nil {
			return nil
		}
		for _, n := range answer.Nodes {
			if len(roles) == 0 || slices.Contains(roles, n.Role) {
				names = append(names, n.Name)
			}
		}
		return slices.Compact(slices.Sorted(slices.Values(names)))
	}
}

func contexts(*Control, ballastv1connect.FleetClient, context.Context, []string) []string {
	all, err := LoadContexts()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(all.Contexts))
}

// instances are those that have a socket on this machine.
func instances(c *Control, _ ballastv1connect.FleetClient, _ context.Context, _ []string) (names []string) {
	sockets, err := filepath.Glob(api.SocketPath(c.runDir, "*"))
	if err != nil {
		return nil
	}
	for _, socket := range sockets {
		names = append(names, filepath.Base(filepath.Dir(socket)))
	}
	return names
}
