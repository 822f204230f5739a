// Package pki is `ballast ctl pki`, which makes certificates as files and asks nobody.
package pki

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Command makes `ballast ctl pki`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make the certificates by which controllers, nodes and operators know each other",
		Long: `Make the certificates by which controllers, nodes and operators know each other. They are files in a directory; no daemon is
asked or told.

A fleet has one authority: ca.crt, which every host gets, and ca.key, which can make certificates and stays where "issue" is run,
best on no host of the fleet. Every host gets ca.crt and its own NAME.crt and NAME.key, in a directory that is named to the daemon
with --tls-dir. A certificate says who its owner is:
  controller  may be trusted with the state of the fleet; nodes and ctl talk to nobody else
  lb          takes the state of the fleet, the keys of cookies included
  agent       reports the load of the servers that have its name, or one of its addresses; takes the services they are in
  ctl         reads and changes the fleet
  etcd        is a member of an etcd cluster; controllers take no connection from it

Renew a certificate with "issue --force" before it ends, and copy the new files over the old: daemons notice, nothing restarts and
no stream is cut. A certificate cannot be revoked: when a key is lost, make a new authority in another directory,
issue every certificate with it, and copy them to all hosts.`,
		Example: `  ballast ctl pki init /root/fleet
  ballast ctl pki issue /root/fleet controller c1 --address 10.0.0.1
  ballast ctl pki issue /root/fleet lb lb1
  ballast ctl pki issue /root/fleet agent web-1 --address 10.0.1.1 --address 2001:db8::1
  scp /root/fleet/{ca.crt,lb1.crt,lb1.key} lb1:/etc/ballast/tls/
  ballast ctl pki show /root/fleet`,
	}
	cmd.AddCommand(initialize(), issue(), show())
	return cmd
}

func initialize() *cobra.Command {
	var force bool
	days := wholeDays(pki.DefaultAuthorityLife)
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Make the authority of a fleet: DIR/ca.crt and DIR/ca.key",
		Long: `Make the authority of a fleet: DIR/ca.crt for every host, and DIR/ca.key, which only "issue" needs. Keep the key secret and safe:
whoever has it can be anybody in the fleet, and without it no certificate can be made or renewed. DIR is created if need be.`,
		Example: `  ballast ctl pki init /root/fleet`,
		RunE: func(cmd *cobra.Command, args []string) error {
			life, err := lifeOf(days)
			if err != nil {
				return err
			}
			if err := pki.Init(args[0], life, force); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "made %[1]s/ca.crt (for every host) and %[1]s/ca.key (keep it secret), valid until %s\n",
				strings.TrimSuffix(args[0], "/"), time.Now().Add(life).Format(time.DateOnly))
			return err
		},
	}
	cmd.Flags().UintVar(&days, "days", days, "how long the authority is valid")
	cmd.Flags().BoolVar(&force, "force", false, "replace an authority: all certificates it has issued are worth nothing then")
	return cmd
}

func issue() *cobra.Command {
	request := pki.Request{}
	days := wholeDays(pki.DefaultLife)
	var addresses []string
	cmd := &cobra.Command{
		Use:   "issue DIR ROLE NAME",
		Short: "Make DIR/NAME.crt and DIR/NAME.key for a controller, lb, agent, ctl or etcd",
		Long: `Make DIR/NAME.crt and DIR/NAME.key with the authority in DIR. ROLE is controller, lb, agent, ctl or etcd: see "pki --help".

NAME is how the owner is called in lists and logs. An agent reports for the servers that are called NAME, and for those that have
one of its addresses: say with --address which those are. Certificates for etcd need the names and addresses that its clients dial;
nodes and ctl know controllers by their role and compare neither. NAME itself is always among them.`,
		Example: `  ballast ctl pki issue /root/fleet agent web-1 --address 10.0.1.1
  ballast ctl pki issue /root/fleet ctl alice --days 30
  ballast ctl pki issue /root/fleet etcd etcd-1 --address 10.0.0.1 --dns etcd-1.example.net
  ballast ctl pki issue /root/fleet lb lb1 --force    # renew`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if request.Role, err = pki.ParseRole(args[1]); err != nil {
				return command.Usage("%w", err)
			}
			request.Name = args[2]
			for _, text := range addresses {
				address, err := netip.ParseAddr(text)
				if err != nil {
					return command.Usage("--address %s: use an IPv4 or IPv6 address: %w", text, err)
				}
				request.Addresses = append(request.Addresses, address)
			}
			if request.Life, err = lifeOf(days); err != nil {
				return err
			}
			if err := pki.Issue(args[0], request); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "made %[1]s/%[2]s.crt and %[1]s/%[2]s.key for role %[3]s, valid until %[4]s\n",
				strings.TrimSuffix(args[0], "/"), request.Name, request.Role, time.Now().Add(request.Life).Format(time.DateOnly))
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&addresses, "address", nil, "`ADDRESS` of the owner, may be repeated")
	flags.StringSliceVar(&request.DNS, "dns", nil, "DNS `NAME` of the owner, may be repeated")
	flags.UintVar(&days, "days", days, "how long the certificate is valid")
	flags.BoolVar(&request.Force, "force", false, "replace a certificate of that name and its key")
	return cmd
}

func show() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show DIR",
		Short: "List the certificates in DIR: whose they are, when they end, what is wrong with them",
	}
	asJSON, now := cmd.Flags().Bool("json", false, "print a JSON array"), time.Now()
	return command.Reading(cmd, asJSON, func(_ *cobra.Command, args []string) ([]pki.Entry, error) { return pki.Show(args[0], now) },
		func(table *command.Table, entries []pki.Entry) {
			table.Row("NAME\tROLE\tEXPIRES\tLEFT\tKEY\tVALID FOR\tPROBLEMS")
			for _, e := range entries {
				key := "-"
				if e.Key {
					key = "here"
				}
				names := append([]string{}, e.DNS...)
				for _, address := range e.Addresses {
					names = append(names, address.String())
				}
				left := command.Counted(int(e.Expires.Sub(now).Hours()/hoursPerDay), "day")
				table.Row(e.Name, command.OrDash(string(e.Role)), e.Expires.Format(time.DateOnly), left, key, command.OrDash(strings.Join(names, " ")),
					command.OrDash(strings.Join(e.Problems, "; ")))
			}
		})
}

const hoursPerDay = 24

func wholeDays(life time.Duration) uint { return uint(life.Hours() / hoursPerDay) }

const maxDays = 36500 // X.509 has no dates after 9999, and time.Duration ends after 292 years

func lifeOf(days uint) (time.Duration, error) {
	if days < 1 || days > maxDays {
		return 0, command.Usage("--days %d: use 1 to %d", days, maxDays)
	}
	return time.Duration(days) * hoursPerDay * time.Hour, nil
}
