// Readiness: what keeps a daemon from its work. Who answers for a VIP in the network may go by it.
package daemon

import (
	"fmt"
	"strings"
)

// obstacles are what keeps this node from forwarding, empty: it is ready. A refused file, servers that are unhealthy and the loss of
// controllers are not among them: what was known goes on. Callers hold mu.
func (lb *LB) obstacles() (found []string) {
	found = append(lb.attachments.Problems(), lb.tierProblems()...)
	if down, all := lb.attachments.Down(); all {
		found = append(found, down...)
	}
	if lb.unattached != "" {
		found = append(found, lb.unattached)
	}
	switch {
	case lb.waiting:
		return append(found, "no controller has said yet what to forward, and no state was kept: what an earlier process left goes on untouched")
	case len(lb.tables.Places()) > 0:
	case lb.remote != nil && lb.revision == 0:
		found = append(found, "no controller has said yet what to forward, and no state was kept")
	default:
		found = append(found, "there is no service to forward for")
	}
	if lb.stale {
		found = append(found, "the file is refused, and what is forwarded by is of before the last reboot: look whether it is still right")
	}
	if lb.applyIncomplete {
		found = append(found, "the tables are behind the desired state: a change was carried out only in part")
	}
	if len(lb.paths.Why) > 0 && !lb.paths.Confirmed() {
		found = append(found, fmt.Sprintf("no way is known to any of %d servers", len(lb.paths.Why)))
	}
	if why := lb.misreads(); why != "" {
		found = append(found, why)
	}
	return append(found, lb.unnamed()...)
}

func (lb *LB) health() []string {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.obstacles()
}

// obstacles are what keeps connections from carrying cookies, or the host from taking the services' packets, empty: it is ready. Callers hold mu.
func (a *Agent) obstacles() (found []string) {
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
func (a *Agent) unnamed() string {
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

func (a *Agent) health() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.obstacles()
}
