package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// Agents that take tunnels of other addresses alone are what a firewall is that knows no IP protocol 4: servers run, and answer nothing.
//
// Promise: A load balancer names tunnels that are dropped on the way to all its servers as one problem.
func TestFilteredTunnelsAreNamedAsOneCause(t *testing.T) {
	t.Parallel()
	noRaces(t)
	n := newDatagramNet(t, handshakeFile)
	for _, name := range []string{"s1", "s2"} {
		n.awaitServer(name, "healthy")
	}
	filter := func(from string) {
		t.Helper()
		for _, server := range n.servers {
			server.write(strings.Replace(handshakeFile, "[10.9.1.1, 10.9.2.1]", from, 1))
			require(t, server.client.Do(t.Context(), "POST", "/v1/config/reload", nil, nil))
		}
	}
	named := func(s api.LBStatus) bool {
		return slices.ContainsFunc(s.Problems, func(problem string) bool {
			return strings.HasPrefix(problem, "2 servers (s1, s2) answer no packet") && strings.HasSuffix(problem, "drops IP protocol 4: let it pass from 10.9.1.1, 10.9.2.1 to servers")
		})
	}
	filter("[10.9.9.9]")
	awaitStatus(n.host, "tunnels are named as the cause", named)
	filter("[10.9.1.1, 10.9.2.1]")
	awaitStatus(n.host, "tunnels pass again", func(s api.LBStatus) bool { return !named(s) })
}
