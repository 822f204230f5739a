package daemon_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/api"
)

// succeeding is lbFile with a predecessor.
func succeeding(predecessor string) string {
	return strings.Replace(fmt.Sprintf(lbFile, ""), "ports: [80],", "ports: [80], predecessor: "+predecessor+",", 1)
}

func (h *lbHost) predecessorPaths() []api.PredecessorPath {
	h.t.Helper()
	var services []api.ServiceStatus
	require(h.t, h.client.Get(h.t.Context(), api.PathServices, &services))
	return services[0].PredecessorPaths
}

// Promise: A predecessor that packets go to and that cannot be reached, or sends them back, is a problem of status, `ctl service show`,
// metrics and alerts; one that no packet comes for is none.
func TestAPredecessorThatIsLostIsAProblemWhilePacketsGoThere(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	arp := func(state string) {
		t.Helper()
		require(t, h.peer.Do(func() error { return exec.Command("ip", "link", "set", "eth0", "arp", state).Run() }))
		require(t, h.space.Do(func() error { return exec.Command("ip", "neigh", "flush", "all").Run() }))
	}
	with := func(problem string) func(api.LBStatus) bool {
		return func(s api.LBStatus) bool { return strings.Contains(strings.Join(s.Problems, "\n"), problem) }
	}
	require(t, h.peer.Do(func() error { // as that which h.send names
		return exec.Command("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01").Run()
	}))
	const away = "service web: predecessor 10.9.0.77: "
	missing := `ballast_next_hops_missing{address="10.9.0.77",server="predecessor of web"} 1`
	h.write(succeeding("{addresses: [10.9.0.4], share: 0}"))
	h.start()
	h.await("ready", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	good := h.scrape()
	if paths := h.predecessorPaths(); len(paths) != 1 || !strings.HasPrefix(paths[0].Path, "eth0 ") || paths[0].Lost != "" {
		t.Errorf("the paths of a predecessor that is there: %+v", paths)
	}

	h.awaitFile(h.write(succeeding("{addresses: [10.9.0.77], share: 500}"))) // nobody is there
	h.await("new connections are lost", with(away))
	h.awaitMetrics("new connections are lost", missing)
	h.pages("a predecessor without a next hop", good, "BallastNextHopMissing")
	if paths := h.predecessorPaths(); len(paths) != 1 || paths[0].Lost == "" {
		t.Errorf("the paths of a predecessor that is away: %+v", paths)
	}

	h.awaitFile(h.write(succeeding("{addresses: [10.9.0.77]}"))) // all begins here
	quiet := h.await("nobody comes for it", func(s api.LBStatus) bool { return s.Ready && !with(away)(s) })
	if len(quiet.Problems) > 0 {
		t.Errorf("a predecessor that nobody needs: %q", quiet.Problems)
	}
	h.say(tableClient, 0x155, false) // of a connection that did not begin here
	h.await("one that needs it", with(away))
	h.awaitMetrics("one that needs it", missing, `ballast_predecessor_connections{service="web"} 1`, `verdict="dropped_no_next_hop"} 1`)

	h.write(succeeding("{addresses: [10.9.0.4], share: 0}"))
	refused := h.await("another one in its place", func(s api.LBStatus) bool { return s.Config.Error != "" })
	if !strings.Contains(refused.Config.Error, "service web: its predecessor goes, and about 1 connection ") || !strings.Contains(refused.Config.Error, "--force") {
		t.Errorf("refused: %q", refused.Config.Error)
	}
	_, err := h.post(reloadByForce, nil)
	require(t, err)

	// The predecessor is the host that clients' packets come from, too.
	h.await("the one that is there", func(s api.LBStatus) bool { return len(s.Problems) == 0 })
	before := h.scrape()
	loops := with("service web: packets for its predecessor come back (dropped_predecessor_loop)")
	h.await("packets come back", func(s api.LBStatus) bool {
		h.send(tableClient, &layers.TCP{SYN: true})
		return loops(s)
	})
	h.pages("packets come back", before, "BallastPredecessorLoop")

	// All that new connections need goes.
	h.awaitFile(h.write(succeeding("{addresses: [10.9.0.4], share: 500}")))
	arp("off")
	h.await("nobody answers", func(s api.LBStatus) bool {
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, "\n"), "no way is known to any of 2 servers") && with("predecessor 10.9.0.4: ")(s)
	})
	arp("on")
	h.await("all are back", func(s api.LBStatus) bool { return s.Ready && !with("predecessor 10.9.0.4: ")(s) })

	// It is removed while connections need it.
	h.write(fmt.Sprintf(lbFile, ""))
	_, err = h.post(reloadByForce, nil)
	require(t, err)
	h.await("connections that miss it", func(s api.LBStatus) bool {
		h.say(tableClient, 0x155, false)
		return with("of connections that did not begin here arrived after its predecessor [10.9.0.4] was removed")(s)
	})
}

// Promise: An agent that has no way to the predecessor says so.
func TestAnAgentMissesThePredecessorThatItHandsTo(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	file := func(address string) string {
		return strings.Replace(fmt.Sprintf(agentFile, 1), "ports: [80],", "ports: [80], predecessor: {addresses: ["+address+"]},", 1)
	}
	h.write(file("10.9.0.77"))
	h.start()
	h.await("the predecessor to be missed", func(s api.AgentStatus) bool {
		return s.Ready && strings.Contains(strings.Join(s.Problems, "\n"), "service web: predecessor 10.9.0.77: ")
	})
	h.write(file("10.9.0.1"))
	h.await("another one", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
}
