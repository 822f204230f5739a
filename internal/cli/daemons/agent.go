// ballast agent.
package daemons

import (
	"cmp"
	"math"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
)

// Agent makes `ballast agent`.
func Agent(version string) *cobra.Command {
	o := agent.Options{Version: version}
	var detach, yes bool
	var logging *command.Logging
	cmd := &cobra.Command{
		Use:   "agent -f FILE | --controller HOST[:PORT],...",
		Short: "Run on a server: decapsulate, and write the server's cookie into connections",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkInstance(o.Instance); err != nil {
				return err
			}
			o.Log = logging.Start(cmd.Context())
			if detach {
				return agent.Detach(o, func(harm string) error {
					command.Warn(cmd, harm)
					if yes {
						return nil
					}
					return command.Confirm(cmd, "detach", "run `ballast leave agent --keep`, which drains and waits first, or say --yes")
				})
			}
			var err error
			o.Controllers, err = command.Controllers("controller", o.Controllers)
			if err = cmp.Or(err, command.CheckListen("metrics", o.Metrics), checkGatewayTable(o.GatewayTable), checkTranslated(o.MaxTranslated)); err != nil {
				return err
			}
			return agent.Run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Config, "file", "f", "", "configuration `FILE` of the fleet")
	flags.StringSliceVar(&o.Controllers, "controller", nil, "`HOST[:PORT]` of controllers to report load to, and without -f to run by, may be repeated (port: "+command.ControllerPort+")")
	flags.StringVar(&o.TLSDir, "tls-dir", "/etc/ballast/tls", "`DIRECTORY` of ca.crt, NAME.crt and NAME.key")
	flags.StringVar(&o.Name, "name", "", "`NAME` of this host in its certificate (default: that of the only one for an agent)")
	flags.StringVar(&o.Cgroup, "cgroup", "", "`DIRECTORY` of the cgroup whose CPU time is the server's (default: all of the host)")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/ballast", "`DIRECTORY` of the last state that controllers gave")
	flags.StringVar(&o.Server, "server", "", "`NAME` of this host's servers in the file (default: those whose address is local)")
	flags.StringVar(&o.Instance, "instance", "default", "`NAME` of this agent among others on the machine")
	flags.StringSliceVar(&o.Interfaces, "interface", nil, "`DEVICE` that packets come in by, may be repeated (default: those of the servers' addresses); devices of routes that answers take are added, at tc alone, without XDP")
	modeFlag(flags, &o.XDPMode, "auto, native or generic")
	flags.DurationVar(&o.TunnelsSettle, "tunnels-settle", 0, "how long controllers list load balancers until tunnels of others are dropped, for experiments")
	flags.MarkHidden("tunnels-settle")
	flags.StringVar(&o.RunDir, "run-dir", api.RunDir, "`DIRECTORY` of sockets and pins")
	flags.StringVar(&o.QUICGroup, "quic-group", "", "`GROUP` that may read RUN_DIR/quic, by which applications make connection ids of services with affinity quic (default: root alone)")
	flags.StringVar(&o.TicketGroup, "ticket-group", "", "`GROUP` that may read RUN_DIR/tickets, by which applications make session tickets of services with session tls (default: root alone)")
	flags.StringVar(&o.TicketKey, "ticket-key", "", "`FILE` with 64 hexadecimal digits, the same on all servers, by which session tickets are encrypted (default: those of the controllers, else a key of this host's own in STATE_DIR)")
	flags.BoolVar(&o.KeepTracking, "keep-tracking", false, "make no table of nftables: connections of services with session tls stay in connection tracking, and are reset where the kernel translates addresses")
	flags.Uint32Var(&o.GatewayTable, "gateway-table", 0, "routing `TABLE` that gets a default route through the load balancers that answer, for network functions (default: none)")
	flags.Uint32Var(&o.MaxTranslated, "max-translated", 0, "room for connections whose addresses this host translates (kube-proxy, DNAT), 136 bytes each (default: by memory, 65536 to 1048576)")
	flags.StringVar(&o.Metrics, "metrics", "", "`ADDRESS:PORT` to serve Prometheus metrics on")
	flags.BoolVar(&detach, "detach", false, "remove the data path that an agent left attached")
	flags.BoolVar(&yes, "yes", false, "--detach: do not ask, whatever breaks")
	logging = command.LogFlags(flags)
	cmd.MarkFlagsOneRequired("file", "controller", "detach")
	return cmd
}

// checkTranslated refuses what the kernel has no room for in one map.
func checkTranslated(room uint32) error {
	if room != 0 && room < 1024 || room > 1<<24 {
		return command.Usage("--max-translated %d: use 1024 to %d; 136 bytes are taken for each, whether or not it is used", room, 1<<24)
	}
	return nil
}

// checkGatewayTable refuses tables that routes of ours have no meaning in.
func checkGatewayTable(table uint32) error {
	if table == unix.RT_TABLE_LOCAL || table > math.MaxInt32 {
		return command.Usage("--gateway-table %d: use a number of 1 to 2147483647, and not 255, the kernel's own", table)
	}
	return nil
}
