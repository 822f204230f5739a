package daemon_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// syn is of a client that has not been there before.
func (h *lbHost) syn(client int) {
	h.t.Helper()
	h.send(netip.AddrPortFrom(tableClient.Addr(), 2000+uint16(client)), newSYN())
}

// A flood comes, lasts while the daemon is killed, and ends.
//
// Promise: `syn_proxy: auto` is on within a second of a flood, stays on when `ballast lb` restarts, and is off some seconds after it.
func TestAutoFollowsTheRateOfSYNs(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newLBHost(t)
	sum := h.write(strings.Replace(fmt.Sprintf(lbFile, ""), "ports: [80],", "ports: [80], syn_proxy: auto, syn_limit: 1,", 1))
	h.start()
	h.awaitFile(sum)
	h.expectMetrics("without a flood", `ballast_syn_proxy_on{service="web"} 0`)
	clients := 0
	flood := func() {
		clients++
		h.syn(clients)
	}
	on := func(s api.LBStatus) bool { return !s.SYNProxy["web"].IsZero() }
	h.await("it to be on", func(s api.LBStatus) bool {
		if !on(s) {
			flood()
		}
		return on(s)
	})
	if h.counter("forwarded_new") == 0 {
		t.Error("SYNs were answered before the flood")
	}
	h.expectMetrics("in a flood", `ballast_syn_proxy_on{service="web"} 1`)
	answered := func(when string) {
		t.Helper()
		before := h.counter("answered_syn")
		h.eventually("SYNs are answered "+when, func() bool { flood(); return h.counter("answered_syn") > before })
	}
	answered("in a flood")
	sent := h.counter("forwarded_new")
	h.kill()
	h.start()
	h.await("the next process goes on", func(s api.LBStatus) bool { return s.Ready && on(s) })
	answered("by the next process")
	if after := h.counter("forwarded_new"); after != sent {
		t.Errorf("%d SYNs of the flood have reached servers", after-sent)
	}
	h.await("it to be off", func(s api.LBStatus) bool { return !on(s) })
	h.expectMetrics("after the flood", `ballast_syn_proxy_on{service="web"} 0`)
	h.syn(1)
	h.eventually("a SYN goes to a server", func() bool { return h.counter("forwarded_new") == sent+1 })
	for _, said := range []string{"SYNs are above the limit: syn_proxy answers them", "syn_proxy is off"} {
		if !strings.Contains(h.output.String(), said) {
			t.Errorf("it does not say %q", said)
		}
	}
	h.awaitFile(h.write(fmt.Sprintf(lbFile, "")))
	if text := h.metrics(); strings.Contains(text, "ballast_syn_proxy_on{") {
		t.Error("there is a metric of a service without syn_proxy")
	}
}

// The server is on the load balancer's host, where sessions do not go.
func TestConnectionsThatBeginHereAreTakenOverHere(t *testing.T) {
	for _, forward := range []string{"ipip", "gue"} {
		t.Run(forward, func(t *testing.T) {
			noRaces(t)
			t.Parallel()
			h := newBothHost(t, forward, "native")
			require(t, h.space.Sysctl("net/mptcp/enabled", "0"))
			h.lb.write(strings.Replace(fmt.Sprintf(bothFile, forward), "dispatch: rr,", "dispatch: rr, syn_proxy: always,", 1))
			h.lb.start()
			h.start()
			h.awaitBoth("at first")
			exchange(t, h.echo())
			h.expectTaken("with syn_proxy")
			if n := h.counters()["ingress_taken_over"]; n != 4 {
				t.Errorf("%d connections were taken over", n)
			}
		})
	}
}
