// What ctl commands read.
package ask

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// Fleet asks whoever keeps the fleet.
func Fleet[Q, A any](c *Control, cmd *cobra.Command, method func(ballastv1connect.FleetClient, context.Context, *Q) (*A, error), question *Q) (*A, error) {
	fleet, err := c.Fleet(cmd)
	if err != nil {
		return nil, err
	}
	return method(fleet, cmd.Context(), question)
}

// ReadLocal completes a command that gets a T from the daemon of this machine.
func ReadLocal[T any](c *Control, cmd *cobra.Command, path string, show func(*command.Table, T)) *cobra.Command {
	return command.Reading(cmd, &c.JSON, func(cmd *cobra.Command, _ []string) (answer T, err error) {
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
