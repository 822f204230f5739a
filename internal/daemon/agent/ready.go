// Readiness: what keeps an agent from its work.
package agent

import (
	"fmt"
	"strings"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// obstacles are what keeps connections from carrying cookies, or the host from taking the services' packets, empty: it is ready. Callers hold mu.
func (a *agent) obstacles() (found []string) {
	if !a.stateKnown && a.options.Config != "" {
		found = append(found, "the file is refused: what an earlier process left goes on untouched")
	} else if !a.stateKnown {
		found = append(found, "no controller has said yet what this host serves, and no state was kept: what an earlier process left, if anything, goes on untouched")
	} else if a.serves == 0 {
		found = append(found, a.unnamed())
	}
	if a.unattached != "" {
		found = append(found, a.unattached)
	}
	if down, all := a.attachments.Down(); all {
		found = append(found, down...)
	}
	return append(append(found, a.attachments.Problems()...), a.problems...)
}

// unnamed says why this host serves nothing. Controllers tell an agent only of the servers that its certificate speaks for. Callers hold mu.
func (a *agent) unnamed() string {
	if a.options.Config != "" || len(a.remote.Running.Services) > 0 {
		return "no service names this host: check --server and the servers' addresses"
	}
	who := a.credentials.Identity()
	addresses := "without an address"
	if len(who.Addresses) > 0 {
		addresses = "of " + strings.Trim(fmt.Sprint(who.Addresses), "[]")
	}
	return fmt.Sprintf("the controllers know no server by the certificate of this host (%s, %s): add the server, or make a certificate with its name or address "+
		"(`ballast ctl pki issue DIR agent NAME --address ADDRESS`)", who.Name, addresses)
}

func (a *agent) health() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.obstacles()
}

func (a *agent) condition() *ballastv1.Condition {
	status := a.status()
	if status.Config.Error != "" {
		status.Problems = append(status.Problems, status.Config.Error)
	}
	return &ballastv1.Condition{Ready: status.Ready, Problems: status.Problems}
}
