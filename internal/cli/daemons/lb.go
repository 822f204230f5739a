// ballast lb.
package daemons

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
)

// LB makes `ballast lb`.
func LB(version string) *cobra.Command {
	o := lb.Options{Timing: fleet.DefaultTiming, Version: version}
	var remove bool
	var logging *command.Logging
	cmd := &cobra.Command{
		Use:   "lb -f FILE | --controller HOST[:PORT],...",
		Short: "Run a load-balancer node",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkInstance(o.Instance); err != nil {
				return err
			}
			if remove {
				return instance.Detach(o.RunDir, o.Instance, pki.LB, func(dir string) error {
					return lb.Withdraw(cmd.Context(), o.StateDir, o.Instance, dir, logging.Start(cmd.Context()))
				})
			}
			if (o.Config == "") == (len(o.Controllers) == 0) {
				return command.Usage("name either a configuration file (-f) or controllers (--controller)")
			}
			var err error
			o.Controllers, err = command.Controllers("controller", o.Controllers)
			err = cmp.Or(err, command.CheckListen("listen", o.Listen), command.CheckListen("metrics", o.Metrics), checkConsole(o.Console, o.ConsoleToken), checkTiming(&o.Timing))
			if err = cmp.Or(err, checkLimits(cmd.Flags(), &o.Limits)); err != nil {
				return err
			}
			o.Log = logging.Start(cmd.Context())
			return lb.Run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Config, "file", "f", "", "configuration file")
	flags.StringSliceVar(&o.Controllers, "controller", nil, "controllers to run by instead of a file, HOST[:PORT], repeatable (port: "+command.ControllerPort+")")
	flags.StringVar(&o.Listen, "listen", "", "with -f: address:port where agents report their load, and packets that they find lost")
	flags.StringVar(&o.TLSDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key")
	flags.StringVar(&o.Name, "name", "", "name of this node, among the fleet's nodes and in its certificate (default: that of the only certificate for a load balancer; without TLS that of the host)")
	flags.StringVar(&o.PeerAddress, "peer-address", "", "with --controller: address or address:port that other load balancers reach this one at, for replicated connections (default: the lowest that its tunnels come from, port 7475)")
	flags.StringVar(&o.Instance, "instance", "default", "name of this node's socket, pins and state on this machine")
	flags.StringSliceVar(&o.Interfaces, "interface", nil, "interface that packets come in by, repeatable (default: those of the default routes)")
	modeFlag(flags, &o.XDPMode, "auto, native or generic; auto tries native first")
	flags.StringVar(&o.RunDir, "run-dir", api.RunDir, "directory of sockets and pinned maps")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/ballast", "directory of what must survive a restart of the machine")
	flags.StringVar(&o.Metrics, "metrics", "", "address:port for Prometheus (always also on the socket: ballast ctl metrics)")
	consoleFlags(flags, &o.Console, &o.ConsoleToken)
	timingFlags(flags, &o.Timing)
	limitFlags(flags, &o.Limits)
	flags.StringVar(&o.FlowLog, "flow-log", "", "file for a line of JSON about each connection that leaves a table, -: standard output (default: none)")
	flags.StringVar(&o.ExecChecks, "exec-checks", "", "directory whose programs exec checks may run, as user nobody (default: with --controller none, with -f any program, as root)")
	flags.BoolVar(&remove, "detach", false, "remove the data path of an instance whose daemon has ended")
	logging = command.LogFlags(flags)
	return cmd
}
