// ballast join, and ballast controller init.
package daemons

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/setup"
)

// hostFlags are those of commands that set a machine up.
func hostFlags(flags *pflag.FlagSet, h *setup.Host, stay *bool) {
	flags.BoolVar(stay, "no-start", false, "start no unit, and print what to start")
	flags.StringVar(&h.TLSDir, "tls-dir", "/etc/ballast/tls", "`DIRECTORY` of certificates and keys")
	flags.StringVar(&h.Defaults, "defaults-dir", "/etc/default", "`DIRECTORY` of the units' options")
	flags.StringVar(&h.RunDir, "run-dir", api.RunDir, "`DIRECTORY` of sockets")
	flags.DurationVar(&h.Wait, "wait", 30*time.Second, "how long the daemon that is started may take")
}

// checkOptions refuses what would end the line of a unit's options.
func checkOptions(options string) error {
	if strings.ContainsAny(options, "\"\\\n$`") {
		return command.Usage("--options %q: options with quotes, dollars, backslashes or line ends are for an editor: add them to the unit's options", options)
	}
	return nil
}

// Join makes `ballast join`.
func Join(version string) *cobra.Command {
	j, stay, file := setup.Join{Version: version}, false, ""
	cmd := &cobra.Command{
		Use:   "join CONTROLLERS --token TOKEN",
		Short: "Make this machine a load balancer or agent of a fleet, by a token",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if j.Controllers, err = command.Controllers("controller", strings.Split(args[0], ",")); err != nil {
				return err
			}
			if j.Keep && !j.Only {
				return command.Usage("--keep is for --certificate-only: a node that has joined has its unit")
			}
			if file != "" {
				text, err := os.ReadFile(file)
				if err != nil && !(j.Keep && errors.Is(err, os.ErrNotExist)) {
					return fmt.Errorf("read the token: %w", err)
				}
				j.Token = string(text)
			}
			if j.Token == "-" {
				text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1024))
				if err != nil {
					return err
				}
				j.Token = string(text)
			}
			j.Out = cmd.OutOrStdout()
			if !stay {
				j.Systemd = setup.Systemd()
			}
			if err := cmp.Or(checkOptions(j.Options), checkInstance(j.Instance)); err != nil {
				return err
			}
			return j.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	hostFlags(flags, &j.Host, &stay)
	flags.StringVar(&j.Token, "token", "", "`TOKEN` of ballast ctl node invite, - reads it from standard input")
	flags.StringVar(&j.Name, "name", "", "`NAME` of this machine in the fleet (default: that of the host)")
	flags.StringVar(&j.Instance, "instance", "default", "`NAME` of the daemon among others on the machine")
	flags.StringSliceVar(&j.Interfaces, "interface", nil, "`DEVICE` that packets come in by, for the daemon's options, may be repeated")
	flags.StringVar(&j.Options, "options", "", "other `OPTIONS` of the daemon, like \"--metrics 127.0.0.1:9435\"")
	flags.BoolVar(&j.Again, "again", false, "replace the certificate that this machine has joined by before; its options stay")
	flags.BoolVar(&j.Only, "certificate-only", false, "write the certificate, and neither options nor start the unit")
	flags.StringVar(&file, "token-file", "", "`FILE` with the token")
	flags.BoolVar(&j.Keep, "keep", false, "with --certificate-only: keep a valid certificate if there is no token or it is refused")
	cmd.MarkFlagsOneRequired("token", "token-file")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	cmd.MarkFlagsMutuallyExclusive("keep", "again")
	return cmd
}

// initialize makes `ballast controller init`.
func initialize() *cobra.Command {
	c, stay := setup.Controller{}, false
	var addresses []string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this machine the first controller of a fleet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range addresses {
				address, err := netip.ParseAddr(text)
				if err != nil {
					return command.Usage("--address %s: use an IPv4 or IPv6 address: %w", text, err)
				}
				c.Addresses = append(c.Addresses, address)
			}
			c.Out = cmd.OutOrStdout()
			if !stay {
				c.Systemd = setup.Systemd()
			}
			if err := checkOptions(c.Options); err != nil {
				return err
			}
			return c.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	hostFlags(flags, &c.Host, &stay)
	flags.StringVar(&c.Name, "name", "", "`NAME` of the controller (default: that of the host)")
	flags.StringSliceVar(&addresses, "address", nil, "`ADDRESS` that nodes and other controllers reach it at, may be repeated (default: that of the default route)")
	flags.StringVar(&c.Authority, "authority-dir", "/etc/ballast/authority", "`DIRECTORY` of the fleet's authority, which is made")
	flags.StringVar(&c.DataDir, "data-dir", "/var/lib/ballast/controller", "`DIRECTORY` of the state")
	flags.StringVar(&c.Options, "options", "", "other `OPTIONS` of the controller, like \"--metrics 127.0.0.1:9437\"")
	return cmd
}
