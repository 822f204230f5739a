// ctl trace.
package local

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// Trace makes `ballast ctl trace`.
func Trace(c *ask.Control) *cobra.Command {
	var service, client, port string
	var count int
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show live packets: which rung of the ladder decided, which server, and why",
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"service": {service}, "client": {client}, "port": {port}}
			stream, err := c.Stream(cmd, api.PathTrace+"?"+query.Encode())
			if err != nil {
				return err
			}
			defer stream.Close()
			lines := bufio.NewScanner(stream)
			for seen := 0; (count == 0 || seen < count) && lines.Scan(); seen++ {
				if err := printEvent(cmd.OutOrStdout(), c.Output, lines.Bytes()); err != nil {
					return err
				}
			}
			if cmd.Context().Err() != nil { // Ctrl-C
				return nil
			}
			return lines.Err()
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "only this service")
	cmd.Flags().StringVar(&client, "client", "", "only this client's address")
	cmd.Flags().StringVar(&port, "port", "", "only this client's port")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many packets")
	return cmd
}

func printEvent(out io.Writer, o *command.Output, line []byte) error {
	switch {
	case o.AsJSON():
		_, err := fmt.Fprintf(out, "%s\n", line)
		return err
	case o.Structured():
		io.WriteString(out, "---\n")
		return o.Write(out, json.RawMessage(line))
	}
	var e api.TraceEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("read trace event: %w", err)
	}
	if e.Suppressed > 0 {
		fmt.Fprintf(out, "(%s left out)\n", model.Counted(e.Suppressed, "packet", "packets"))
	}
	fmt.Fprintf(out, "%s -> %s %s %d bytes: %s", e.Source, e.Destination, e.Flags, e.Length, e.Verdict)
	if e.Server != "" {
		fmt.Fprintf(out, " -> %s (id %d)", e.Server, e.ID)
	}
	if len(e.Stops) > 0 {
		fmt.Fprintf(out, " then %s", strings.Join(e.Stops, ", "))
	}
	if e.Timestamp != 0 || e.Echo != 0 {
		fmt.Fprintf(out, " TSval %d TSecr %d", e.Timestamp, e.Echo)
	}
	printSession(out, e.Session)
	_, err := fmt.Fprintln(out)
	return err
}
