// Package ask is how ctl reaches daemons and controllers, what is the same in all that it reads, and in all that it changes.
package ask

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Control is what all ctl commands share: who is asked, and how the answer is printed.
type Control struct {
	*command.Output
	instance, runDir, socket string
	controllers              []string
	tlsDir, tlsName          string
	context                  string
	yes                      bool // what harms clients or cannot be taken back is meant
	comment                  string
	dryRun                   bool // nothing is to be changed, only told
	flags                    *pflag.FlagSet
	resolved                 bool     // target was called
	refused                  error    // what it said
	origins                  []string // of what no flag has said
}

// New takes a Control from the flags of a command and of all below it.
func New(cmd *cobra.Command) *Control {
	flags := cmd.PersistentFlags()
	c := &Control{flags: flags}
	flags.StringVar(&c.instance, "instance", "default", "name of the local daemon's instance; of a controller, its name")
	flags.StringVar(&c.runDir, "run-dir", api.RunDir, "directory of sockets")
	flags.StringVar(&c.socket, "socket", "", "path of the local daemon's socket, instead of --instance")
	flags.StringSliceVar(&c.controllers, "controller", nil, "HOST[:PORT] of controllers, separated by commas: the first that answers is asked (port: "+command.ControllerPort+")")
	flags.StringVar(&c.tlsDir, "tls-dir", "/etc/ballast/tls", "directory of ca.crt, NAME.crt and NAME.key, for --controller")
	flags.StringVar(&c.tlsName, "tls-name", "", "NAME of the certificate (default: the only one for role ctl in --tls-dir)")
	flags.StringVar(&c.context, "context", "", "`NAME` of the context that says who is asked; empty: none (default: that of `ballast ctl context use`)")
	flags.StringVar(&c.comment, "comment", "", "`TEXT` that says why the fleet is changed, for `ballast ctl history list`")
	c.Output = command.NewOutput(flags)
	return c
}

func (c *Control) daemon() *api.Client {
	if c.socket != "" {
		return api.NewClient(c.socket)
	}
	return api.NewClient(api.SocketPath(c.runDir, c.instance))
}

// IDFile is where this machine's agent keeps what the applications of a service make QUIC connection ids by.
func (c *Control) IDFile(service string) (path string, err error) {
	if err := c.target(); err != nil {
		return "", err
	}
	if len(c.controllers) > 0 {
		return "", command.Usage("this is of one server only: run the command there, without --controller")
	}
	return filepath.Join(api.IDDir(c.runDir, c.instance), service+".json"), nil
}

// Remote reports whether controllers elsewhere are asked.
func (c *Control) Remote() (bool, error) {
	err := c.target()
	return len(c.controllers) > 0, err
}

// Local asks the daemon of this machine what is of one node only.
func (c *Control) Local() (*api.Client, error) {
	if err := c.target(); err != nil {
		return nil, err
	}
	if len(c.controllers) > 0 {
		return nil, command.Usage("this is of one node only, and no controller knows it: run the command on that node, without --controller")
	}
	return c.daemon(), nil
}

// Fleet asks whoever keeps the fleet: controllers, or the daemon of this machine.
func (c *Control) Fleet(cmd *cobra.Command) (ballastv1connect.FleetClient, error) {
	if err := c.target(); err != nil {
		return nil, err
	}
	if err := api.CheckComment(c.comment); err != nil {
		return nil, command.Usage("--comment: %w", err)
	}
	if len(c.controllers) == 0 {
		return c.daemon().Fleet(warnOfOld(cmd), api.WithComment(c.comment), api.WithDryRun(c.dryRun)), nil
	}
	controllers, credentials, err := c.named()
	if err != nil {
		return nil, err
	}
	return api.NewFleetClient(controllers, credentials.Client(), warnOfOld(cmd), api.WithComment(c.comment), api.WithDryRun(c.dryRun)), nil
}

// Because says why the fleet is changed, where --comment does not.
func (c *Control) Because(text string) {
	if c.comment == "" {
		c.comment = text
	}
}

// Controllers asks controllers about themselves, or the one of this machine.
func (c *Control) Controllers() (ballastv1connect.ControllersClient, error) {
	if err := c.target(); err != nil {
		return nil, err
	}
	if len(c.controllers) == 0 {
		return c.daemon().Controllers(api.WithDryRun(c.dryRun)), nil
	}
	controllers, credentials, err := c.named()
	if err != nil {
		return nil, err
	}
	return api.NewControllersClient(controllers, credentials.Client(), api.WithDryRun(c.dryRun)), nil
}

// Enrolment asks controllers to invite nodes, or the one of this machine.
func (c *Control) Enrolment() (ballastv1connect.EnrolmentClient, error) {
	if err := c.target(); err != nil {
		return nil, err
	}
	if len(c.controllers) == 0 {
		return c.daemon().Enrolment(api.WithDryRun(c.dryRun)), nil
	}
	controllers, credentials, err := c.named()
	if err != nil {
		return nil, err
	}
	return api.NewEnrolmentClient(controllers, credentials.Client(), api.WithDryRun(c.dryRun)), nil
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
func (c *Control) named() (controllers []string, credentials *pki.Credentials, err error) {
	if c.socket != "" {
		return nil, nil, command.Usage("--socket and --controller are two daemons to ask: give one of them")
	}
	if controllers, err = command.Controllers("controller", c.controllers); err != nil {
		return nil, nil, err
	}
	credentials, err = pki.Load(c.tlsDir, c.tlsName, pki.Ctl)
	return controllers, credentials, err
}

// Fleet asks whoever keeps the fleet.
func Fleet[Q, A any](c *Control, cmd *cobra.Command, method func(ballastv1connect.FleetClient, context.Context, *Q) (*A, error), question *Q) (*A, error) {
	fleet, err := c.Fleet(cmd)
	if err != nil {
		return nil, err
	}
	return method(fleet, cmd.Context(), question)
}

// ListLocal completes a command that gets a T from the daemon of this machine, once or again and again.
func ListLocal[T any](c *Control, cmd *cobra.Command, path string, show func(*command.Table, T)) *cobra.Command {
	return command.Listing(cmd, c.Output, func(cmd *cobra.Command, _ []string) (answer T, err error) {
		client, err := c.Local()
		if err == nil {
			err = client.Get(cmd.Context(), path, &answer)
		}
		return answer, err
	}, show)
}

// Stream opens what the daemon of this machine goes on telling.
func (c *Control) Stream(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	client, err := c.Local()
	if err != nil {
		return nil, err
	}
	return client.Stream(cmd.Context(), path)
}
