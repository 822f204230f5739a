// ballast controller.
package daemons

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
)

// Controller makes `ballast controller`.
func Controller(version string) *cobra.Command {
	o := controller.Options{Timing: fleet.DefaultTiming, Version: version}
	var logging *command.Logging
	cmd := &cobra.Command{
		Use:   "controller --tls-dir DIR (--data-dir DIR | --etcd URL,...)",
		Short: "Run a controller: desired state, health, load and weights for many nodes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := cmp.Or(command.CheckListen("listen", o.Listen), command.CheckListen("metrics", o.Metrics), checkConsole(o.Console, o.ConsoleToken), checkTiming(&o.Timing))
			if err == nil && o.Public != "" {
				err = command.CheckEndpoints("public", []string{o.Public})
			}
			if err == nil && (o.DataDir == "") == (len(o.Etcd) == 0) {
				err = command.Usage("name one store: --data-dir, or --etcd for one of your own")
			}
			if err == nil && len(o.Join) > 0 {
				o.Join, err = command.Controllers("join", o.Join)
				o.Join = slices.DeleteFunc(o.Join, func(other string) bool { return other == o.Public }) // one list for all: the first of them joins nobody
				if o.DataDir == "" {
					err = command.Usage("--join is for controllers with --data-dir: those with --etcd share what is there")
				}
			}
			if err != nil {
				return err
			}
			o.Log = logging.Start(cmd.Context())
			return controller.Run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Name, "name", "", "name of the certificate NAME.crt in --tls-dir (default: that of the only one for a controller)")
	flags.StringVar(&o.Listen, "listen", ":6443", "address:port for load balancers, agents and ctl")
	flags.StringVar(&o.Public, "public", "", "host:port that nodes and other controllers reach this one at (default: that of --listen, or the first address of the certificate)")
	flags.StringVar(&o.TLSDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key")
	flags.StringVar(&o.Asking.Dir, "sources-dir", "/etc/ballast/sources", "directory of sources of servers that fleets may name: consul/NAME.yaml (agents of Consul), files/ (lists of servers)")
	flags.StringVar(&o.DataDir, "data-dir", "", "directory of this controller's copy of the state")
	flags.StringSliceVar(&o.Join, "join", nil, "HOST[:PORT] of controllers that this one joins if its --data-dir is empty; one that has data goes on with that. Itself, by --public, does not count")
	flags.StringSliceVar(&o.Etcd, "etcd", nil, "endpoints of the etcd that has the state of several controllers")
	flags.StringVar(&o.EtcdCA, "etcd-ca", "", "certificate of the authority of etcd (default: those of this machine)")
	flags.StringVar(&o.EtcdCert, "etcd-cert", "", "certificate to show to etcd")
	flags.StringVar(&o.EtcdKey, "etcd-key", "", "its key")
	flags.StringVar(&o.EtcdPrefix, "etcd-prefix", "", "what keys in etcd begin with (default /ballast/): several fleets can share an etcd")
	flags.StringVar(&o.RunDir, "run-dir", api.RunDir, "directory of the socket for ctl on this machine")
	flags.StringVar(&o.Metrics, "metrics", "", "address:port for Prometheus (always also on the socket: ballast ctl metrics)")
	consoleFlags(flags, &o.Console, &o.ConsoleToken)
	timingFlags(flags, &o.Timing)
	logging = command.LogFlags(flags)
	cmd.AddCommand(initialize(), restore())
	return cmd
}
