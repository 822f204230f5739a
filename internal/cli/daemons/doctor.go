// ballast doctor.
package daemons

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/doctor"
)

// Doctor makes `ballast doctor`.
func Doctor() *cobra.Command {
	o := doctor.Options{Role: doctor.RoleAuto}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [-f FILE]",
		Short: "Find what breaks set-ups, with the remedy",
		Long: `Find what breaks set-ups, with the remedy, before or while a daemon runs. Nothing is changed: no program is attached, no file
system stays mounted, and servers see no more than a connection attempt.

On a load balancer and on a server (agent):
  state, file   what the daemon runs or has run last, whatever it runs by, or the file: it is valid, others cannot read its keys, some server takes new
                connections, ids are not running out
  kernel        each BPF feature that the role uses, probed, BTF, capabilities, a trial load of the role's programs,
                the BPF file system (and whether pins outlive the daemon), the JIT
  interface     is up, and is the right one of a bond or VLAN; native XDP; what is attached to it already; on veth what
                keeps it from behaving like a wire
  daemon        runs, answers, is ready, reports no problem; with -f: runs by this very file
On a load balancer:
  path          route and neighbour of every server, whether it answers, room for encapsulation around 1500 bytes
  tier          this node is among those that have a tier, its address is this host's; the same of nodes of the second as of servers
  timestamps    servers of return: through have one clock for all connections (net.ipv4.tcp_timestamps=2)
  forwarding    is on where answers go through this node
  offloads      none merges packets before the program sees them; more than one receive queue
  membarrier    works: changes of the tables wait with it
  clock         is synchronised (used for the rest of removed servers' ids, never for cookies)
On a server:
  identity      which entry of the file this host is
  vip           is an address of this host
  timestamps    net.ipv4.tcp_timestamps is not 0, no route has tcp_usec_ts
  way back      there is a route to clients that are not near, and its router answers
  way out       the agent is attached to the devices of default routes and routes through a gateway; all have Ethernet addresses
  rp_filter     does not drop packets whose way back is another interface
  arp           is not answered for the VIP where the load balancers share the segment
  mtu           leaves room for the tunnel, or the default route announces segments that fit (advmss)
  listener      a socket is open for every port of the VIP, or where a rule takes it (redirect, DNAT)
  translation   no rule takes a service's port elsewhere (redirect, DNAT; if nft is installed): such connections carry cookies, with limits

The role is that of the daemon that runs, or of the one that has left its data path or state here; else, by the file, agent where a
server's address is local and lb where none is. Without any of these it is unknown, and only what both roles need is checked. A daemon
that does not run where one has run before is a problem.
Findings are ok, warning (it works, but slower or not for everybody) or problem. The exit status is 1 when there is a problem, else 0.`,
		Example: `  ballast doctor -f /etc/ballast/ballast.yaml
  ballast doctor -f ballast.yaml --role lb --interface eth0 --interface eth1
  ballast doctor --json | jq '.[] | select(.severity == "problem")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := doctor.Examine(cmd.Context(), o)
			if err := command.Print(cmd.OutOrStdout(), asJSON, findings, printFindings); err != nil {
				return err
			}
			if n := doctor.Count(findings, doctor.Problem); n > 0 {
				return fmt.Errorf("doctor: %s: see the remedies", command.Counted(n, "problem"))
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Config, "file", "f", "", "configuration `FILE` of the fleet (default: what the daemon runs, or has run last)")
	flags.Var(command.OneOf(&o.Role, doctor.RoleAuto, doctor.RoleLB, doctor.RoleAgent), "role", "auto, lb or agent")
	flags.StringVar(&o.Server, "server", "", "`NAME` of this host's servers in the file (default: those whose address is local)")
	flags.StringVar(&o.Name, "name", "", "`NAME` of this load balancer among the file's nodes (default: that of the daemon, else of the host)")
	flags.StringSliceVar(&o.Interfaces, "interface", nil, "`DEVICE` to look at, may be repeated (default: those that the daemon has or would take)")
	flags.StringVar(&o.Instance, "instance", "default", "`NAME` of the daemon's instance")
	flags.StringVar(&o.RunDir, "run-dir", "/run/ballast", "`DIRECTORY` of sockets and pins")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/ballast", "`DIRECTORY` of what daemons keep for the next")
	flags.BoolVar(&asJSON, "json", false, "print the findings as a JSON array")
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "print what the kernel's verifier said of a program that it rejected, too (hundreds of lines)")
	return cmd
}

// marks lead the lines of the table, so that what is wrong is seen first.
var marks = map[doctor.Severity]string{doctor.OK: "  ok", doctor.Warning: "  ! ", doctor.Problem: "XXX "}

func printFindings(table *command.Table, findings []doctor.Finding) {
	logs := ""
	for _, f := range findings {
		found, log, _ := strings.Cut(f.Found, "\n")
		table.Row(marks[f.Severity], f.Check, f.Subject, found)
		if f.Remedy != "" {
			table.Line("\t\t\t-> %s", f.Remedy)
		}
		if log != "" {
			logs += fmt.Sprintf("the verifier about %s %s:\n%s\n", f.Check, f.Subject, log)
		}
	}
	table.Line("%s%s, %s, %d ok", logs, command.Counted(doctor.Count(findings, doctor.Problem), "problem"),
		command.Counted(doctor.Count(findings, doctor.Warning), "warning"), doctor.Count(findings, doctor.OK))
}
