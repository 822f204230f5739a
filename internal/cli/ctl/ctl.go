package ctl

import (
	"fmt"
	"io"
	"net"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/pki"
)

// controllerPort is where controllers listen unless they are told otherwise.
const controllerPort = "6443"

// control is what all ctl commands share.
type control struct {
	instance, runDir, socket string
	controllers              []string
	tlsDir, tlsName          string
	json                     bool
	yes                      bool // what harms clients or cannot be taken back is meant
}

// Command makes `ballast ctl`.
func Command() *cobra.Command {
	c := &control{}
	cmd := &cobra.Command{
		Use:   "ctl",
		Short: "Look at a running fleet and change what it does",
		Long: `Look at a running fleet and change what it does: a load balancer that runs by a file, over its local socket, or all of those that
run by controllers, over a controller's local socket or with --controller and a certificate for role ctl from anywhere.

Commands named by a noun read; those named by a noun and a verb change. Changes take effect at once. Those of a load balancer that
runs by a file are of this node alone (repeat them on the other nodes), survive restarts of the daemon, and stay until
somebody changes the same thing again, here or in the file: see ` + "`ballast ctl config diff`" + ` for what differs from it.
Those that a controller takes are of the whole fleet. ` + "`ballast ctl apply -f FILE`" + ` makes a fleet what a file says, as a whole.

What is of one node only (status, counters, connections, metrics, trace, config) is asked at that node.`,
		Example: `  ballast ctl servers
  ballast ctl server drain web s3 --deadline 10m --wait
  ballast ctl apply -f fleet.yaml --dry-run
  ballast ctl --controller c1,c2,c3 --tls-dir ~/.ballast nodes
  ballast ctl --instance c1 keys`,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&c.instance, "instance", "default", "name of the local daemon's instance; of a controller, its name")
	flags.StringVar(&c.runDir, "run-dir", "/run/ballast", "directory of sockets")
	flags.StringVar(&c.socket, "socket", "", "path of the local daemon's socket, instead of --instance")
	flags.StringSliceVar(&c.controllers, "controller", nil, "HOST[:PORT] of controllers, separated by commas: the first that answers is asked (port: "+controllerPort+")")
	flags.StringVar(&c.tlsDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key, for --controller")
	flags.StringVar(&c.tlsName, "tls-name", "", "NAME of the certificate (default: the only one for role ctl in --tls-dir)")
	flags.BoolVar(&c.json, "json", false, "print JSON")
	cmd.AddCommand(c.statusCommand(), c.servicesCommand(), c.serversCommand(), c.countersCommands(), c.connectionsCommand(), c.keysCommand(), c.metricsCommand(),
		c.nodesCommand(), c.fleetCommand(), c.historyCommand(), c.applyCommand(), c.serviceCommand(), c.serverCommand(), c.nodeCommand(), c.keyCommand(), c.configCommand(),
		c.traceCommand(), pkiCommand())
	return cmd
}

func (c *control) socketPath() string {
	if c.socket != "" {
		return c.socket
	}
	return api.SocketPath(c.runDir, c.instance)
}

// local asks the daemon of this machine what is of one node only.
func (c *control) local() (*api.Client, error) {
	if len(c.controllers) > 0 {
		return nil, command.Usage("this is of one node only, and no controller knows it: run the command on that node, without --controller")
	}
	return api.NewClient(c.socketPath()), nil
}

// fleet asks whoever keeps the fleet: controllers, or the daemon of this machine.
func (c *control) fleet(cmd *cobra.Command) (ballastv1connect.FleetClient, error) {
	if len(c.controllers) == 0 {
		return api.NewClient(c.socketPath()).Fleet(warnOfOld(cmd)), nil
	}
	controllers, credentials, err := c.named()
	if err != nil {
		return nil, err
	}
	return api.NewFleetClient(controllers, credentials.Client(), warnOfOld(cmd)), nil
}

// warnOfOld says when what is read may be old, once for each reason.
func warnOfOld(cmd *cobra.Command) connect.ClientOption {
	said := ""
	return api.OnRead(func(unconfirmed string) {
		if unconfirmed != "" && unconfirmed != said {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: this may not be the newest state: %s\n", unconfirmed)
		}
		said = unconfirmed
	})
}

// named are the controllers of --controller, and how to ask them.
func (c *control) named() (controllers []string, credentials *pki.Credentials, err error) {
	if c.socket != "" {
		return nil, nil, command.Usage("--socket and --controller are two daemons to ask: give one of them")
	}
	for _, controller := range c.controllers {
		controllers = append(controllers, withPort(controller))
	}
	if err := command.CheckEndpoints("controller", controllers); err != nil {
		return nil, nil, err
	}
	credentials, err = pki.Load(c.tlsDir, c.tlsName, pki.Ctl)
	return controllers, credentials, err
}

// outcome is what a change did, as --json prints it.
type outcome struct {
	Changes  []string `json:"changes"`
	Revision uint64   `json:"revision,omitempty"`
	ID       uint32   `json:"id,omitempty"` // of a server or node that was added
}

// print says what a change did.
func (c *control) print(out io.Writer, done outcome) error {
	if c.json {
		return command.WriteJSON(out, done)
	}
	if len(done.Changes) == 0 {
		fmt.Fprintln(out, "nothing changed")
	}
	for _, line := range done.Changes {
		fmt.Fprintln(out, line)
	}
	return nil
}

// mayHarm gives commands that may harm clients, or that cannot be taken back, the flag that says that it is meant.
func (c *control) mayHarm(commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask, also where it harms clients or cannot be taken back")
	}
}

// change asks for a change of the fleet and says what it did. force is given once somebody has said that it is meant.
func (c *control) change(cmd *cobra.Command, ask func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error)) error {
	fleet, err := c.fleet(cmd)
	if err != nil {
		return err
	}
	answer, err := c.asked(cmd, func(force bool) (*ballastv1.ChangeResponse, error) { return ask(fleet, force) })
	if err != nil {
		return err
	}
	return c.print(cmd.OutOrStdout(), outcome{command.NonNil(answer.Changes), answer.Revision, answer.Id})
}

// asked asks for a change, and shows people what it harms before it is done.
func (c *control) asked(cmd *cobra.Command, ask func(force bool) (*ballastv1.ChangeResponse, error)) (*ballastv1.ChangeResponse, error) {
	answer, err := ask(c.yes)
	warnings := api.WarningsOf(err)
	if len(warnings) == 0 {
		return answer, err
	}
	warn(cmd, warnings)
	if err := c.confirm(cmd, "go on", "say --yes if that is meant"); err != nil {
		return nil, err
	}
	return ask(true)
}

// warn shows what a change harms.
func warn(cmd *cobra.Command, warnings []string) {
	for _, line := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "WARNING:", line)
	}
}

// withPort adds the port of controllers where there is none.
func withPort(controller string) string {
	if _, _, err := net.SplitHostPort(controller); err == nil {
		return controller
	}
	return net.JoinHostPort(strings.Trim(controller, "[]"), controllerPort)
}
