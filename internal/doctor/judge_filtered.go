package doctor

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/model"
)

// judgeFiltered joins what the daemon's checks see through tunnels with what servers answer outside of them: it is one cause, however many
// servers it takes.
func judgeFiltered(f *facts) (out []Finding) {
	for i := range f.Daemon.Filtered {
		cause := &f.Daemon.Filtered[i]
		asked, answer := 0, 0
		for _, address := range cause.Addresses {
			if path := f.Paths[address]; path.Asked {
				asked++
				if !path.Silent {
					answer++
				}
			}
		}
		what, remedy := splitRemedy(cause.Problem())
		switch {
		case answer > 0:
			what += fmt.Sprintf("; without a tunnel, %d of %s of them TCP", answer, model.Counted(asked, "answers", "answer"))
		case asked > 0:
			what += "; none of them answers TCP without a tunnel either"
			remedy = "start the servers, or correct the network on the way to them; if they run: " + remedy
		}
		out = append(out, Finding{"tunnels", cause.Protocol, Problem, what, remedy})
	}
	return out
}
