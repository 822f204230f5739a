// Package pki is `ballast ctl pki`, which makes certificates as files and asks nobody, and has controllers revoke them.
package pki

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Command makes `ballast ctl pki`.
func Command(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "pki", Short: "Make and revoke the certificates by which controllers, nodes and operators know each other"}
	cmd.AddCommand(initialize(), issue(), delegate(c), show(c.Output), revoke(c), list(c))
	return cmd
}

func initialize() *cobra.Command {
	var force bool
	days := wholeDays(pki.DefaultAuthorityLife)
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Make the authority of a fleet: DIR/ca.crt and DIR/ca.key",
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
		Short: "Make DIR/NAME.crt and DIR/NAME.key for a controller, lb, agent, ctl, source or etcd",
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
			if err != nil {
				return err
			}
			shared, err := pki.SharedAddresses(args[0], request.Name, time.Now())
			for i := range shared {
				shared[i] += ": right if both run on one host; else issue it again, with --force and other addresses"
			}
			ask.Warn(cmd, shared...)
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

func show(o *command.Output) *cobra.Command {
	cmd := &cobra.Command{Use: "show DIR", Short: "List the certificates in DIR: whose they are, when they end, what is wrong with them"}
	now := time.Now()
	return command.Reading(cmd, o, func(_ *cobra.Command, args []string) ([]pki.Entry, error) { return pki.Show(args[0], now) },
		func(table *command.Table, entries []pki.Entry) {
			table.Row("NAME\tROLE\tSERIAL\tEXPIRES\tLEFT\tKEY\tVALID FOR\tPROBLEMS")
			for _, e := range entries {
				key := "-"
				if e.Key {
					key = "here"
				}
				names := append([]string{}, e.DNS...)
				for _, address := range e.Addresses {
					names = append(names, address.String())
				}
				left := model.Counted(int(e.Expires.Sub(now).Hours()/hoursPerDay), "day", "days")
				table.Row(e.Name, command.OrDash(string(e.Role)), command.OrDash(e.Serial), e.Expires.Format(time.DateOnly), left, key, command.OrDash(strings.Join(names, " ")),
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
