package daemon_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
)

// What a file says of mptcp is told to clients until the agent leaves for good.
func TestAnAgentTellsClientsWithMPTCPWhereToJoin(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	with := strings.Replace(agentFile, "ports: [80]", "ports: [80], mptcp: {first_port: 40000, ports: 100}", 1)
	sum := h.write(fmt.Sprintf(with, 1))
	h.start()
	status := h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	if len(status.Joins) != 1 || status.Joins[0].Port() < 40000 || status.Joins[0].Port() > 40099 || len(status.Problems) != 0 {
		t.Fatalf("status %+v", status)
	}
	announced := func(when string, want ...netip.AddrPort) {
		t.Helper()
		require(t, h.space.Do(func() error {
			there, err := mptcp.Endpoints()
			var have []netip.AddrPort
			for _, e := range there {
				have = append(have, e.Address)
			}
			if !slices.Equal(have, want) {
				t.Errorf("%s: clients are told %v, not %v", when, have, want)
			}
			return err
		}))
	}
	announced("at first", status.Joins...)
	sum = h.write(fmt.Sprintf(with, 2))
	if after := h.await("the next key", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum }); !slices.Equal(after.Joins, status.Joins) {
		t.Errorf("a rotation of keys moves clients from %v to %v", status.Joins, after.Joins)
	}
	if err := h.remove("test"); err == nil {
		t.Error("detached while the daemon runs")
	}
	announced("while the daemon runs", status.Joins...)
	h.kill()
	announced("without the daemon", status.Joins...)
	require(t, h.remove("test"))
	announced("after it has left")
}
