package daemon_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

// choicesFile is agentFile with dispatch choices.
const choicesFile = `%s
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], dispatch: choices, forward: gue, choices: {accept: {policy: %s, threshold: 7}}, servers: [
      {name: s1, address: 10.9.0.2, id: 1}, {name: s2, address: 10.9.0.3, id: 2}]}
`

// awaitGauge waits until the agent tells a number of the service.
func (h *agentHost) awaitGauge(name string, want int) {
	h.t.Helper()
	line := fmt.Sprintf("ballast_agent_acceptance_%s{service=\"web\"} %d\n", name, want)
	await.Nil(h.t, line, func() error {
		if metrics := h.metrics(); !strings.Contains(metrics, line) {
			return fmt.Errorf("have %s", metrics)
		}
		return nil
	})
}

func TestAnAgentKnowsItsLoadWhoeverRunsMeanwhile(t *testing.T) {
	t.Parallel()
	h := newReadyAgent(t)
	connections := []net.Conn{h.echo()}
	exchange(t, connections[0])

	h.write(fmt.Sprintf(choicesFile, "", "dynamic"))
	refused := h.await("the refusal", func(s api.AgentStatus) bool { return s.Config.Error != "" })
	if !strings.Contains(refused.Config.Error, "tunnels_from") || !strings.Contains(refused.Config.Error, "web") {
		t.Errorf("refused: %s", refused.Config.Error)
	}
	sum := h.write(fmt.Sprintf(choicesFile, "tunnels_from: [10.9.0.1]", "dynamic"))
	h.await("choices", func(s api.AgentStatus) bool {
		return s.Config.SHA256 == sum && s.Config.Error == "" && len(s.Problems) == 0
	})
	h.awaitGauge("load", 1) // from before
	h.awaitGauge("limit", 7)
	connections = append(connections, h.dial())
	h.awaitGauge("load", 2)

	h.kill()
	connections = append(connections, h.dial())
	sum = h.write(fmt.Sprintf(choicesFile, "tunnels_from: [10.9.0.1]", "static"))
	h.start()
	h.await("the second process", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	h.awaitGauge("load", 3)
	for _, conn := range connections {
		exchange(t, conn)
		require(t, conn.Close())
	}
	h.awaitGauge("load", 0)

	sum = h.write(fmt.Sprintf(agentFile, 1)) // and back
	h.await("no choices", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	if metrics := h.metrics(); strings.Contains(metrics, "acceptance") {
		t.Errorf("metrics of what is no more: %s", metrics)
	}
	exchange(t, h.dial())
}
