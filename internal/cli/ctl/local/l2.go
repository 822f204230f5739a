// ctl l2.
package local

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// L2 makes `ballast ctl l2 show`, by itself the same as `ballast ctl l2 show`.
func L2(c *ask.Control) *cobra.Command {
	return ask.Lone("l2", func() *cobra.Command {
		return ask.ListLocal(c, &cobra.Command{Use: "show", Short: "Show who answers ARP and Neighbor Discovery for VIPs"}, api.PathL2, printL2)
	})
}

func printL2(out *command.Table, s api.L2Status) {
	out.Line("interface %s, %s", s.Interface, command.OrDash(s.MAC))
	out.Row("VIP\tOWNER\tHERE\tNEXT\tSINCE\tANSWERS\tWHY")
	for _, v := range s.VIPs {
		here := "no"
		if v.Owned {
			here = "yes"
		}
		out.Row(v.VIP, command.OrDash(v.Owner), here, command.OrDash(v.Next), timeOrDash(v.Since), v.Answers, command.OrDash(v.Why))
	}
	others := "VIP\tOTHER HOST THAT ANSWERS\tANSWERED"
	for _, v := range s.VIPs {
		if v.Foreign != nil {
			if others != "" {
				out.Line("")
				out.Row(others)
				others = ""
			}
			out.Row(v.VIP, v.Foreign, timeOrDash(v.Foreign.Answered))
		}
	}
	out.Line("if this daemon stops: VIPs stay here for %v, and then until NEXT takes them", time.Duration(s.LeaseSeconds*float64(time.Second)))
	out.Line("")
	out.Row("LOAD BALANCER\tMAC\tRECEIVED\tVIPS")
	for _, p := range s.Peers {
		out.Row(p.Name, p.MAC, timeOrDash(p.Heard), p.Owned)
	}
	for _, problem := range s.Problems {
		out.Line("problem: %s", problem)
	}
}

func timeOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}
