// ballast leave.
package daemons

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/setup"
)

// Leave makes `ballast leave`.
func Leave() *cobra.Command {
	l := setup.Leave{}
	var yes, stay bool
	var controllers []string
	var logging *command.Logging
	cmd := &cobra.Command{
		Use:   "leave [ROLE]",
		Short: "Make this machine no node of its fleet any more",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			l.Roles = []pki.Role{pki.Agent, pki.LB} // servers first: their connections may come by the load balancer here
			if len(args) > 0 {
				role, err := pki.ParseRole(args[0])
				if err != nil || role != pki.Agent && role != pki.LB {
					return command.Usage("role %q: use lb or agent", args[0])
				}
				l.Roles = []pki.Role{role}
			}
			if l.Controllers, err = command.Controllers("controller", controllers); err != nil {
				return err
			}
			if err := command.NotNegative("deadline", l.Deadline); err != nil {
				return err
			}
			log := logging.Start(cmd.Context())
			l.Out = cmd.OutOrStdout()
			if !stay {
				l.Stop = setup.StopUnit()
			}
			l.Confirm = func(warnings []string) error {
				command.Warn(cmd, warnings...)
				if yes {
					return nil
				}
				return command.Confirm(cmd, "go on", "say --yes if that is meant")
			}
			l.Left = func(n *setup.Node) (count uint64, known bool, err error) {
				if n.Role == pki.LB {
					return lb.Forwarded(n.RunDir, n.Instance)
				}
				count, err = agent.Living(n.RunDir, n.Instance)
				return count, err == nil, err
			}
			l.Detach = func(ctx context.Context, n *setup.Node) (err error) {
				if n.Role == pki.Agent {
					err = agent.Detach(agent.Options{RunDir: n.RunDir, Instance: n.Instance, Log: log}, func(harm string) error { // it was waited for, or is forced
						command.Warn(cmd, harm)
						return nil
					})
				} else {
					err = instance.Detach(n.RunDir, n.Instance, n.Role, func(dir string) error {
						return lb.Withdraw(ctx, n.StateDir, n.Instance, dir, log)
					})
				}
				if errors.Is(err, instance.ErrNoInstance) {
					err = nil
				}
				return err
			}
			return l.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&l.TLSDir, "tls-dir", "/etc/ballast/tls", "`DIRECTORY` of certificates and keys, unless the unit's options name another")
	flags.StringVar(&l.Defaults, "defaults-dir", "/etc/default", "`DIRECTORY` of the units' options")
	flags.StringVar(&l.RunDir, "run-dir", api.RunDir, "`DIRECTORY` of sockets and pins")
	flags.StringVar(&l.StateDir, "state-dir", "/var/lib/ballast", "`DIRECTORY` of the last state that controllers gave")
	flags.StringSliceVar(&controllers, "controller", nil, "`HOST[:PORT]` of controllers, may be repeated (default: those of the unit's options)")
	flags.DurationVar(&l.Deadline, "deadline", 10*time.Minute, "how long to wait until nothing lives; then nothing is removed")
	flags.BoolVar(&l.Force, "force", false, "do not wait for what lives: it breaks")
	flags.BoolVar(&l.Keep, "keep", false, "stay a member: stop after the data path is removed, and say how to come back")
	flags.BoolVar(&l.DryRun, "dry-run", false, "say what would be done, and what lives, and change nothing")
	flags.BoolVar(&stay, "no-stop", false, "stop no unit: its daemon has to be ended otherwise")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	logging = command.LogFlags(flags)
	return cmd
}
