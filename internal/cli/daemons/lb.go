// ballast lb.
package daemons

import (
	"cmp"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/plan"
)

// LB makes `ballast lb`.
func LB(version string) *cobra.Command {
	o := lb.Options{Limits: plan.DefaultLimits, Timing: node.DefaultTiming, Version: version}
	var verbose, remove bool
	cmd := &cobra.Command{
		Use:   "lb -f FILE | --controller HOST:PORT,...",
		Short: "Run a load-balancer node",
		Long: `Run a load-balancer node: an XDP program on the interfaces that packets come in by, and a daemon that keeps its tables
equal to the configuration file, or to what controllers say.

The file is read again when it changes and on SIGHUP. A file with an error is refused, with file, line and key, and the old
state goes on. What changed in the file is applied onto what runs: unchanged lines never undo what was changed by
` + "`ballast ctl`" + `, and an edit overrides it. The last explicit change of a thing wins.

The data path outlives the daemon: after SIGTERM or kill -9 packets are forwarded as before, and the next daemon of the same
--instance takes over tables, counters and program without losing a packet. --detach removes the data path; run it in
the network namespace that the daemon ran in: kernels without tcx (before Linux 6.6) show filters there alone.

With -f, this daemon judges health and computes weights alone. Agents report their load to it with --listen; what they do not
report, it estimates.

With --controller, the node keeps a stream to every controller (mutual TLS: ` + "`ballast ctl pki`" + ` makes the certificates) and takes
whatever is newest. Without any controller it goes on with the last state, weights and health included, also after a restart.

Removed servers keep getting the packets of their connections until none has come for --linger; until --quarantine later their
ids cannot be given to other servers.

Exec checks run programs on this host. With --controller whoever may change the fleet would choose them, so there are none until
--exec-checks names a directory: programs in it, which root owns and nobody else can write, run as user nobody. Services whose check is
not made here are among the problems of ` + "`ballast ctl status`" + `, and nothing is concluded about their servers.

Services with affinity table keep an entry for each connection (` + "`ballast ctl connections`" + `): --max-entries is the room for all of them,
taken at the start. The flow log gets a line when an entry goes, and goes on in a new file when the old one was renamed; lines that
cannot be written are counted, and delay nothing. --max-entries and --max-local of a running data path change with --detach alone.`,
		Example: `  ballast lb -f /etc/ballast/ballast.yaml --interface eth0
  ballast lb -f ballast.yaml --xdp-mode generic --metrics 127.0.0.1:9435
  ballast lb -f ballast.yaml --listen 10.0.0.1:6443 --tls-dir /etc/ballast/tls
  ballast lb --controller 10.0.0.21:6443,10.0.0.22:6443,10.0.0.23:6443 --tls-dir /etc/ballast/tls
  ballast lb -f ballast.yaml --max-entries 16777216 --flow-log /var/log/ballast/flows.json
  ballast lb --detach`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkInstance(o.Instance); err != nil {
				return err
			}
			if remove {
				return instance.Detach(o.RunDir, o.Instance)
			}
			if (o.Config == "") == (len(o.Controllers) == 0) {
				return command.Usage("name either a configuration file (-f) or controllers (--controller)")
			}
			err := cmp.Or(command.CheckEndpoints("controller", o.Controllers), command.CheckListen("listen", o.Listen), command.CheckListen("metrics", o.Metrics), checkTiming(&o.Timing))
			if err = cmp.Or(err, roundLimits(&o.Limits)); err != nil {
				return err
			}
			o.Log = command.NewLog(verbose)
			return lb.Run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Config, "file", "f", "", "configuration file")
	flags.StringSliceVar(&o.Controllers, "controller", nil, "controllers to run by instead of a file, HOST:PORT, repeatable")
	flags.StringVar(&o.Listen, "listen", "", "with -f: address:port where agents report their load")
	flags.StringVar(&o.TLSDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key")
	flags.StringVar(&o.Name, "name", "", "name of this node, among the fleet's nodes and in its certificate (default: that of the only certificate for a load balancer; without TLS that of the host)")
	flags.StringVar(&o.Instance, "instance", "default", "name of this node's socket, pins and state on this machine")
	flags.StringSliceVar(&o.Interfaces, "interface", nil, "interface that packets come in by, repeatable (default: those of the default routes)")
	modeFlag(flags, &o.XDPMode, "auto, native or generic; auto tries native first")
	flags.StringVar(&o.RunDir, "run-dir", "/run/ballast", "directory of sockets and pinned maps")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/ballast", "directory of what must survive a restart of the machine")
	flags.StringVar(&o.Metrics, "metrics", "", "address:port for Prometheus (always also on the socket: ballast ctl metrics)")
	timingFlags(flags, &o.Timing)
	limitFlags(flags, &o.Limits)
	flags.StringVar(&o.FlowLog, "flow-log", "", "file for a line of JSON about each connection that leaves a table, -: standard output (default: none)")
	flags.StringVar(&o.ExecChecks, "exec-checks", "", "directory whose programs exec checks may run, as user nobody (default: with --controller none, with -f any program, as root)")
	flags.BoolVar(&remove, "detach", false, "remove the data path of an instance whose daemon has ended")
	flags.BoolVarP(&verbose, "verbose", "v", false, "log more")
	return cmd
}
