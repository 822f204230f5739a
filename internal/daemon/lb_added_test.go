package daemon_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The way of a server that is added, until its application listens: no client meets it before.
func TestAServerThatIsAddedWaitsForItsChecks(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newLBHost(t)
	write := func(added string) (sum string) {
		return h.write(strings.Replace(fmt.Sprintf(lbFile, added), "ports: [80],",
			"ports: [80], dispatch: rr, health: {check: tcp, port: 8080, interval: 200ms, timeout: 100ms, rise: 1, fall: 2},", 1))
	}
	sent := 0
	syns := func(n int) {
		for range n {
			h.send(netip.AddrPortFrom(tableClient.Addr(), 2000+uint16(sent)), newSYN())
			sent++
		}
		h.eventually("SYNs are forwarded", func() bool { return h.counter("forwarded_new") == uint64(sent) })
	}
	sum := write("")
	defer h.applications()()
	h.start()
	h.awaitFile(sum)
	h.awaitMetrics("servers are healthy", `ballast_service_healthy_servers{service="web"} 2`)
	h.awaitFile(write(", {name: s3, address: 10.9.0.4, id: 3}"))
	none := `ballast_server_connections_total{id="3",server="s3",service="web"} 0`
	syns(30)
	h.expectMetrics("before and after the first checks", none, `ballast_server_in_use{id="3",server="s3",service="web"} 0`)
	h.awaitMetrics("nobody listens there", `ballast_server_healthy{id="3",server="s3",service="web"} 0`)
	syns(30)
	h.expectMetrics("while nobody listens", none)
	defer h.applications("10.9.0.4:8080")()
	h.awaitMetrics("the application listens", `ballast_service_healthy_servers{service="web"} 3`, `ballast_server_in_use{id="3",server="s3",service="web"} 1`)
	syns(30)
	h.expectMetrics("it gets its turns", `ballast_server_connections_total{id="3",server="s3",service="web"} 10`)
}
