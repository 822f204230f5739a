package daemon_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// starting are the servers that start, as the fleet API shows them.
func (h *lbHost) starting() map[string]*ballastv1.ServerStatus {
	h.t.Helper()
	answer, err := h.client.Fleet().ListServers(h.t.Context(), &ballastv1.ListServersRequest{})
	require(h.t, err)
	found := map[string]*ballastv1.ServerStatus{}
	for _, s := range answer.Servers {
		if s.WholeAt != nil {
			found[s.Server.Name] = s
		}
	}
	return found
}

// A server that fails and comes back gets a tenth of the others' connections, by metrics too, and its whole share without slow_start.
func TestAServerThatRecoversStartsSlowly(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newLBHost(t)
	write := func(start string) (sum string) {
		return h.write(strings.Replace(fmt.Sprintf(lbFile, ", {name: s3, address: 10.9.0.4, id: 3}"), "ports: [80],", "ports: [80], dispatch: rr, "+start+
			"health: {check: tcp, port: 8080, interval: 200ms, timeout: 100ms, rise: 1, fall: 2},", 1))
	}
	sent := 0
	syns := func(n int) {
		h.t.Helper()
		for range n {
			h.send(netip.AddrPortFrom(tableClient.Addr(), 2000+uint16(sent)), newSYN())
			sent++
		}
		h.eventually("SYNs are forwarded", func() bool { return h.counter("forwarded_new") == uint64(sent) })
	}
	sum := write("slow_start: 1h, ")
	defer h.applications()()
	end := h.applications("10.9.0.4:8080")
	h.start()
	h.awaitFile(sum)
	h.awaitMetrics("servers are healthy", `ballast_service_healthy_servers{service="web"} 3`)
	syns(30)
	h.expectMetrics("nobody starts at first", `ballast_server_connections_total{id="3",server="s3",service="web"} 10`)
	const part = `ballast_server_slow_start_ratio{id="3",server="s3",service="web"}`
	end()
	h.awaitMetrics("its application is gone", `ballast_server_in_use{id="3",server="s3",service="web"} 0`)
	end = h.applications("10.9.0.4:8080")
	h.awaitMetrics("its application is back", `ballast_server_in_use{id="3",server="s3",service="web"} 1`, part+" 0.1")
	h.eventually("it is shown that it starts", func() bool { return h.starting()["s3"] != nil })
	if shown := h.starting(); len(shown) != 1 || shown["s3"].SlowStart != 0.1 || time.Until(shown["s3"].WholeAt.AsTime()).Round(10*time.Minute) != time.Hour {
		t.Errorf("shown are %v", shown)
	}
	syns(42)
	h.expectMetrics("it starts", `ballast_server_connections_total{id="3",server="s3",service="web"} 12`)
	h.awaitFile(write(""))
	syns(30)
	h.expectMetrics("without slow_start", `ballast_server_connections_total{id="3",server="s3",service="web"} 22`)
	if text := h.metrics(); strings.Contains(text, part) {
		t.Error("it starts still")
	}
	h.eventually("it is not shown any more", func() bool { return len(h.starting()) == 0 })
	h.awaitFile(write("slow_start: 3s, "))
	end()
	h.awaitMetrics("its application is gone again", `ballast_server_in_use{id="3",server="s3",service="web"} 0`)
	defer h.applications("10.9.0.4:8080")()
	h.awaitMetrics("it starts again", part)
	h.eventually("it is whole", func() bool { return !strings.Contains(h.metrics(), part) })
	h.eventually("it is shown to be whole", func() bool { return len(h.starting()) == 0 })
	syns(30)
	h.expectMetrics("when it is whole", `ballast_server_connections_total{id="3",server="s3",service="web"} 32`)
}
