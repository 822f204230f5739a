package daemon_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/model"
)

// applications listen at servers until they are closed; at none: at the two of lbFile.
func (h *lbHost) applications(addresses ...string) (close func()) {
	h.t.Helper()
	var listeners []net.Listener
	if len(addresses) == 0 {
		addresses = []string{"10.9.0.2:8080", "10.9.0.3:8080"}
	}
	require(h.t, h.peer.Do(func() error {
		for _, address := range addresses {
			l, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		return nil
	}))
	return func() {
		for _, l := range listeners {
			l.Close()
		}
	}
}

// awaitMetrics waits until all lines are there.
func (h *host) awaitMetrics(what string, lines ...string) {
	h.t.Helper()
	h.eventually(what, func() bool {
		text := h.metrics()
		for _, line := range lines {
			if !strings.Contains(text, line) {
				return false
			}
		}
		return true
	})
}

// Public: metallb/metallb#312 (an address is announced that no endpoint answers at).
func TestTheVIPFollowsChecksAsAllDownSays(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := &lbHost{newHost(t, "all-down", []string{"10.9.0.1/24"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.12/24"})}
	h.role = "bgp-lb"
	require(t, os.WriteFile(filepath.Join(h.dir, "password"), []byte(bgpSecret+"\n"), 0o600))
	r := h.bgpRouter("10.9.0.12", bgpSecret)
	write := func(policy model.AllDown) (sum string) {
		checked := strings.Replace(fmt.Sprintf(lbFile, ""), "ports: [80],",
			fmt.Sprintf("ports: [80], health: {check: tcp, port: 8080, interval: 200ms, timeout: 100ms, rise: 1, fall: 2, all_down: %s},", policy), 1)
		return h.write(fmt.Sprintf(bgpNode, "active", "10.9.0.12", filepath.Join(h.dir, "password")) + checked)
	}
	write(model.AllDownKeep)
	end := h.applications()
	h.start()
	c, _ := r.establish()
	r.next(c)
	withdrawals, sent := 0, map[string]uint64{}
	for _, policy := range []model.AllDown{model.AllDownKeep, model.AllDownWithdraw, model.AllDownNone} {
		h.awaitFile(write(policy))
		h.awaitMetrics("servers are healthy, and the VIP is announced", `ballast_service_healthy_servers{service="web"} 2`, `ballast_bgp_vip_sessions{vip="198.51.100.10/32"} 1`)
		good := h.scrape()
		metricstest.ExpectPages(t, "servers are healthy", nil, good)
		end()
		h.awaitMetrics("checks say that all are down: "+policy.String(), `ballast_service_healthy_servers{service="web"} 0`,
			`ballast_server_healthy{id="1",server="s1",service="web"} 0`, `ballast_server_healthy{id="2",server="s2",service="web"} 0`)
		said := "no server is healthy: new connections go to"
		verdict, sessions := "forwarded_new", 1
		switch policy {
		case model.AllDownNone:
			said, verdict, sessions = "no server takes new connections", "dropped_no_server", 0
		case model.AllDownWithdraw:
			sessions = 0
		}
		h.awaitMetrics("BGP", fmt.Sprintf(`ballast_bgp_vip_sessions{vip="198.51.100.10/32"} %d`, sessions))
		if sessions == 0 {
			withdrawals++
			if update := r.next(c); !bytes.Equal(update, append(append([]byte{0, 5}, vipNLRI...), 0, 0)) {
				t.Errorf("%s: % x does not withdraw the VIP", policy, update)
			}
		}
		h.expectMetrics(policy.String(), fmt.Sprintf("ballast_bgp_withdrawals_total %d\n", withdrawals), "ballast_problems 1\n")
		h.await(said, func(s api.LBStatus) bool { return strings.Contains(strings.Join(s.Problems, "\n"), said) })
		pages := map[model.AllDown][]string{model.AllDownKeep: {"BallastServiceWithoutHealthyServers"},
			model.AllDownWithdraw: {"BallastServiceWithoutHealthyServers", "BallastVIPNotAnnounced"}, model.AllDownNone: {"BallastServiceWithoutServers", "BallastVIPNotAnnounced"}}
		h.pages(policy.String(), good, pages[policy]...)
		h.send(tableClient, newSYN())
		sent[verdict]++
		h.eventually(fmt.Sprintf("%s: a SYN is %s", policy, verdict), func() bool { return h.counter(verdict) == sent[verdict] })
		used := strings.Contains(h.metrics(), `ballast_server_in_use{id="1",server="s1",service="web"} 1`) || strings.Contains(h.metrics(), `ballast_server_in_use{id="2",server="s2",service="web"} 1`)
		if used != (policy != model.AllDownNone) {
			t.Errorf("%s: servers in use: %v", policy, used)
		}
		end = h.applications()
		if sessions == 0 {
			if update := r.next(c); !bytes.HasSuffix(update, vipNLRI) {
				t.Errorf("%s: % x does not announce the VIP again", policy, update)
			}
		}
		h.awaitMetrics("the servers are back", `ballast_service_healthy_servers{service="web"} 2`, `ballast_bgp_vip_sessions{vip="198.51.100.10/32"} 1`)
	}
	h.awaitMetrics("all is well", `ballast_service_healthy_servers{service="web"} 2`, `ballast_bgp_vip_sessions{vip="198.51.100.10/32"} 1`)
	good := h.scrape()
	r.listener.Close()
	c.Close()
	h.awaitMetrics("the router is gone", `ballast_bgp_session_up{neighbor="10.9.0.12"} 0`)
	h.pages("no router", good, "BallastVIPNotAnnounced")
	end()
}
