// ctl trace.
package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// tracing is what `ballast ctl trace` is asked for.
type tracing struct {
	service, client, port string
	count                 int
	duration              time.Duration
	sample                uint32
	pcap                  string
	top                   int
}

// Trace makes `ballast ctl trace`.
func Trace(c *ask.Control) *cobra.Command {
	t := &tracing{}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show live packets: which rung of the ladder decided, which server, and why",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.check(cmd, c.Output); err != nil {
				return err
			}
			switch {
			case t.top > 0:
				return t.showTop(cmd, c)
			case t.pcap != "":
				return t.capture(cmd, c)
			}
			return t.show(cmd, c)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&t.service, "service", "", "only this service")
	flags.StringVar(&t.client, "client", "", "only this client's address")
	flags.StringVar(&t.port, "port", "", "only this client's port")
	flags.IntVar(&t.count, "count", 0, "end after so many packets")
	flags.DurationVar(&t.duration, "duration", 0, "end after so long")
	flags.Uint32Var(&t.sample, "sample", 0, "of N packets show one, by chance (with --top: as few as needed)")
	flags.StringVar(&t.pcap, "pcap", "", "write packets' headers to this file, for Wireshark or tcpdump; -: to standard output")
	flags.IntVar(&t.top, "top", 0, "show the N clients, services and verdicts with the most packets (without N: 10)")
	flags.Lookup("top").NoOptDefVal = "10"
	return cmd
}

// check refuses what makes no sense together.
func (t *tracing) check(cmd *cobra.Command, o *command.Output) error {
	switch {
	case t.count < 0:
		return command.Usage("--count %d: use 0 or more", t.count)
	case t.top < 0 || cmd.Flags().Changed("top") && t.top == 0:
		return command.Usage("--top %d: use 1 or more", t.top)
	case t.top > 0 && t.pcap != "":
		return command.Usage("--top counts packets, --pcap writes them to a file: give one of them")
	case t.pcap != "" && o.Structured():
		return command.Usage("--pcap writes a capture: leave out --output")
	case t.pcap == "-" && command.IsTerminal(cmd.OutOrStdout()):
		return command.Usage("a capture is no text for a terminal: name a file, or pipe it, as into `tcpdump -r -`")
	}
	return command.NotNegative("duration", t.duration)
}

// follow gives events, as JSON, to a function until there were enough.
func (t *tracing) follow(cmd *cobra.Command, c *ask.Control, each func(line []byte) error) error {
	if t.duration > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), t.duration)
		defer cancel()
		cmd.SetContext(ctx)
	}
	stream, err := c.Stream(cmd, api.PathTrace+"?"+t.query().Encode())
	if err != nil {
		return err
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	seen := 0
	for ; (t.count == 0 || seen < t.count) && lines.Scan(); seen++ {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	if cmd.Context().Err() != nil { // Ctrl-C, or its time is over
		return nil
	}
	if lines.Err() == nil && (t.count == 0 || seen < t.count) {
		return errors.New("the load balancer ended the trace: see its log")
	}
	return lines.Err()
}

// parsed gives each line that follow brings as an event.
func parsed(each func(*api.TraceEvent) error) func(line []byte) error {
	return func(line []byte) error {
		var e api.TraceEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read trace event: %w", err)
		}
		return each(&e)
	}
}

func (t *tracing) query() url.Values {
	query := url.Values{"service": {t.service}, "client": {t.client}, "port": {t.port}}
	switch {
	case t.sample > 0:
		query.Set(api.TraceSample, strconv.FormatUint(uint64(t.sample), 10))
	case t.top > 0:
		query.Set(api.TraceSample, api.TraceSampleAuto)
	}
	if t.pcap != "" {
		query.Set(api.TraceHeaders, "1")
	}
	return query
}

// show prints events, those for programs as they come.
func (t *tracing) show(cmd *cobra.Command, c *ask.Control) error {
	out := cmd.OutOrStdout()
	switch {
	case c.Output.AsJSON():
		return t.follow(cmd, c, func(line []byte) error {
			_, err := fmt.Fprintf(out, "%s\n", line)
			return err
		})
	case c.Output.Structured():
		return t.follow(cmd, c, func(line []byte) error {
			io.WriteString(out, "---\n")
			return c.Output.Write(out, json.RawMessage(line))
		})
	}
	return t.follow(cmd, c, parsed(func(e *api.TraceEvent) error {
		if e.Suppressed > 0 {
			fmt.Fprintf(out, "(%s left out)\n", model.Counted(e.Suppressed, "packet", "packets"))
		}
		fmt.Fprintf(out, "%s -> %s %s %d bytes: %s\n", e.Source, e.Destination, e.Flags, e.Length, became(e))
		return nil
	}))
}

// became is what a packet's event says of it, beside its headers.
func became(e *api.TraceEvent) string {
	var out strings.Builder
	out.WriteString(e.Verdict)
	if e.Server != "" {
		fmt.Fprintf(&out, " -> %s (id %d)", e.Server, e.ID)
	}
	if len(e.Stops) > 0 {
		fmt.Fprintf(&out, " then %s", strings.Join(e.Stops, ", "))
	}
	if e.Timestamp != 0 || e.Echo != 0 {
		fmt.Fprintf(&out, " TSval %d TSecr %d", e.Timestamp, e.Echo)
	}
	printSession(&out, e.Session)
	return out.String()
}
