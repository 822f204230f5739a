// ballast bench veth.
package bench

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

func veth() *cobra.Command {
	return measuring(&cobra.Command{
		Use:   "veth",
		Short: "Measure forwarding over a pair of veth devices, beside a program that only sends back",
		Long: `Measure what it costs to send a frame over a pair of veth devices to a program, and back: real frames, in native XDP on both
ends, in a network namespace that is made for this and leaves nothing behind. The programs are those of "ballast bench datapath",
and so are the frames. Each is measured right beside "empty", which sends back what it gets, fed the same frames.

Times are CPU time, of all of the way: making the frame, both devices, the program under test, and counting the frame when it is
back. A round is repeated when more than one frame in a hundred was handled in another thread's time. The ratio is what part of
the frames that "empty" could send back the program can. Every frame must come back as long as it should, and the program's own
counters must have seen every packet get the verdict that is shown. Needs root.`,
		Example: `  ballast bench veth
  ballast bench veth --json --flows 1000000 --rounds 31 > veth.json`,
	}, []uint{1, 1_000_000}, bench.MaxFlows, bench.RunVeth, printVeth)
}

func printVeth(table *command.Table, cells []bench.VethCell) {
	table.OfNumbers()
	table.Row("program\tflows\tmin\tmedian\tmax\tof empty: least\tmedian\tmost\ttarget\tverdict")
	for _, c := range cells {
		target := "-"
		if c.Program == "cookie" {
			target = fmt.Sprintf(">= %.2f", bench.VethTarget)
		}
		table.Line("%s\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%s\t%s\t", c.Program, c.Flows, c.MinNS, c.MedianNS, c.MaxNS,
			c.MinRatio, c.Ratio, c.MaxRatio, target, c.Verdict)
	}
	table.Line("\nTimes in ns of CPU time per frame, all of the way there and back. Of empty: of the frames a second that it could send back.")
}
