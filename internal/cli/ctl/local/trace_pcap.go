// ctl trace --pcap.
package local

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pcapng"
)

// capture writes packets to a file, which only its owner can read if it is a new one.
func (t *tracing) capture(cmd *cobra.Command, c *ask.Control) error {
	out := command.Bytes(cmd)
	if t.pcap != "-" {
		file, err := os.OpenFile(t.pcap, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return fmt.Errorf("write the capture: %w", err)
		}
		defer file.Close()
		out = file
	}
	captured, err := t.write(cmd, c, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s captured, of each at most %d bytes of headers; %d left out\n", model.Counted(captured.packets, "packet", "packets"),
		api.TraceHeadersMost, captured.suppressed)
	return nil
}

type captured struct{ packets, suppressed uint64 }

func (t *tracing) write(cmd *cobra.Command, c *ask.Control, out io.Writer) (sum captured, err error) {
	w, err := pcapng.NewWriter(out, "ballast", api.TraceHeadersMost)
	if err != nil {
		return sum, fmt.Errorf("write the capture: %w", err)
	}
	err = t.follow(cmd, c, parsed(func(e *api.TraceEvent) error {
		sum.packets++
		sum.suppressed += uint64(e.Suppressed)
		p := pcapng.Packet{Time: e.Time, Interface: e.Interface, Head: e.Headers, Length: e.FrameLength, Comment: became(e)}
		if e.Service != "" {
			p.Comment += " service " + e.Service
		}
		if e.StandsFor > 1 {
			p.Comment += fmt.Sprintf(" (1 of %d)", e.StandsFor)
		}
		if e.Suppressed > 0 {
			p.Comment += fmt.Sprintf(" (%d left out before)", e.Suppressed)
		}
		if err := w.Write(p); err != nil {
			return fmt.Errorf("write the capture: %w", err)
		}
		return nil
	}))
	return sum, err
}
