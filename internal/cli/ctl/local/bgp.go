// ctl bgp.
package local

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// BGP makes `ballast ctl bgp show`, by itself the same as `ballast ctl bgp show`.
func BGP(c *ask.Control) *cobra.Command {
	return ask.Lone("bgp", func() *cobra.Command { return showBGP(c) })
}

func showBGP(c *ask.Control) *cobra.Command {
	return ask.ListLocal(c, &cobra.Command{Use: "show", Short: "Show BGP sessions and the VIPs announced"}, api.PathBGP, printBGP)
}

func printBGP(out *command.Table, s api.BGPStatus) {
	id := "-"
	if s.RouterID.IsValid() {
		id = s.RouterID.String()
	}
	out.Line("AS %d, router id %s", s.AS, id)
	out.Row("NEIGHBOR\tAS\tSESSION\tSINCE\tCARRIES\tBFD\tWHY NOT")
	for _, n := range s.Neighbors {
		out.Row(n.Address, n.AS, upOrDown(n.Up), n.Since.Format(time.RFC3339), command.OrDash(strings.Join(n.Carries, ",")), describeBFD(n.BFD), command.OrDash(n.Why))
	}
	out.Line("")
	out.Row("VIP\tANNOUNCED\tSINCE\tTO\tWHY")
	for _, v := range s.VIPs {
		announced := "no"
		switch {
		case v.Announced && len(v.To) == 0:
			announced = "no session"
		case v.Announced:
			announced = "yes"
		}
		var to []string
		for _, address := range v.To {
			to = append(to, address.String())
		}
		out.Row(v.VIP, announced, v.Since.Format(time.RFC3339), command.OrDash(strings.Join(to, ",")), v.Why)
	}
	for _, problem := range s.Problems {
		out.Line("problem: %s", problem)
	}
}

func upOrDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func describeBFD(b *api.BGPBFD) string {
	switch {
	case b == nil:
		return "-"
	case b.Up:
		return fmt.Sprintf("up, within %v", b.Detection.Duration())
	}
	return "down"
}
