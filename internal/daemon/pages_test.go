package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// scrape asks for metrics as Prometheus does, over the network.
func (h *host) scrape() metricstest.Scrape {
	h.t.Helper()
	text := ""
	require(h.t, h.peer.Do(func() error {
		connection, err := net.DialTimeout("tcp", "10.9.0.1:9435", time.Second)
		if err != nil {
			return nil // it does not answer
		}
		defer connection.Close()
		client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return connection, nil }, DisableKeepAlives: true}}
		answer, err := client.Get("http://10.9.0.1:9435/metrics")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		text = string(content)
		return err
	}))
	return metricstest.Scrape{"lb1": text}
}

// pages expects the alerts that page if things stay as they are; before is what was scraped before the fault.
func (h *host) pages(when string, before metricstest.Scrape, want ...string) {
	h.t.Helper()
	metricstest.ExpectPages(h.t, when, want, before, before, h.scrape())
}

// Promise: Every alert of severity `page` fires on what a daemon with the fault exports, and routine work pages
// nobody.
// Also held by TestFaultsOfControllersPage.
func TestFaultsOfALoadBalancerPageAndRoutineDoesNot(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitFileAfter(fmt.Sprintf(lbFile, ", {name: s3, address: 10.9.0.4, id: 3}"))
	h.await("ready", func(s api.LBStatus) bool { return s.Ready })
	good := h.scrape()
	metricstest.ExpectPages(t, "all is well", nil, good)

	h.awaitFile(h.with(", {name: s3, address: 10.9.0.77, id: 4}")) // nobody is there
	h.awaitMetrics("a server that is not there", `ballast_next_hops_missing{address="10.9.0.77",server="s3"} 1`)
	h.pages("a server without a next hop", good, "BallastNextHopMissing")
	h.awaitFile(h.with(""))
	h.eventually("a removed server is not missed", func() bool { return !strings.Contains(h.metrics(), "\nballast_next_hops_missing{") })
	h.pages("a server is removed", good)

	h.with(", {name: s3, address: 10.9.0.4, id: 1}")
	h.await("the refusal", func(s api.LBStatus) bool { return s.Config.Error != "" })
	h.pages("a file is refused", good, "BallastConfigRefused")
	h.awaitFile(h.with(""))

	before := h.scrape()
	for range 20 {
		h.say(tableClient, 0x155, false) // a cookie of another layout
	}
	h.eventually("bad cookies", func() bool { return h.counter("forwarded_bad_cookie") == 20 })
	h.pages("cookies are not understood", before, "BallastBadCookies")

	h.kill()
	away := h.scrape()
	metricstest.ExpectPages(t, "the daemon is dead", []string{"BallastDown"}, good, away)
	h.start()
	h.await("ready again", func(s api.LBStatus) bool { return s.Ready })
	metricstest.ExpectPages(t, "a restart", nil, good, away, h.scrape(), h.scrape())

	before = h.scrape()
	h.awaitFile(h.write(strings.ReplaceAll(fmt.Sprintf(lbFile, ""), ", id:", ", weight: 0, id:")))
	h.awaitMetrics("nobody takes new connections", `ballast_service_taking_servers{service="web"} 0`)
	h.pages("no server takes new connections", before, "BallastServiceWithoutServers")
	h.send(tableClient, &layers.TCP{SYN: true})
	h.eventually("a SYN is dropped", func() bool { return h.counter("dropped_no_server") == 1 })
	h.pages("new connections are dropped", before, "BallastPacketsDropped", "BallastServiceWithoutServers")
}

func TestAProgramInThePlaceOfOursPages(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("ready", func(s api.LBStatus) bool { return s.Ready })
	good := h.scrape()
	wire, err := link.Load()
	require(t, err)
	defer wire.Close()
	h.whileStopped(func() {
		h.detach("xdp")
		require(t, h.space.Do(func() error {
			device, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetXdpFdWithFlags(device, wire.PassFD(), nl.XDP_FLAGS_DRV_MODE)
		}))
	})
	h.await("the complaint", func(s api.LBStatus) bool { return !s.Ready })
	h.pages("another program has the interface", good, "BallastNotAttached", "BallastNotReady")
}

func TestTheLossOfControllersAndAnEndingCertificatePage(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	require(t, pki.Issue(h.tlsDir(), pki.Request{Role: pki.LB, Name: "lb1", Life: 20 * time.Hour, Force: true}))
	h.start()
	controller, end := h.control(1)
	controller.Topics.SetState(viewOf(5, nil, 2, 3))
	h.await("the state", func(s api.LBStatus) bool { return s.Ready && s.Revision == 5 })
	metricstest.ExpectPages(t, "a certificate ends today", []string{"BallastCertificateExpiresNow"}, h.scrape())
	require(t, pki.Issue(h.tlsDir(), pki.Request{Role: pki.LB, Name: "lb1", Force: true}))
	require(t, h.reload())
	h.await("the controller", func(s api.LBStatus) bool { return s.Ready && len(s.Controllers) == 1 })
	good := h.scrape()
	metricstest.ExpectPages(t, "another certificate", nil, good)
	controller.Topics.SetState(viewOf(6, nil, 2, 3, 4))
	h.await("the next state", func(s api.LBStatus) bool { return s.Revision == 6 })
	next := h.scrape()
	metricstest.ExpectPages(t, "one load balancer stays behind", []string{"BallastRevisionsDiffer"}, metricstest.Scrape{"lb1": next["lb1"], "lb2": good["lb1"]})
	end()
	h.await("the loss of the controllers", func(s api.LBStatus) bool { return len(s.Controllers) == 0 })
	h.pages("no controller", good, "BallastNoController")
}

func TestAFullTablePages(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitFileAfter(tableFile)
	good := h.scrape()
	for port := range uint16(500) {
		h.say(netip.AddrPortFrom(tableClient.Addr(), 2000+port), 0, false)
	}
	h.eventually("no room", func() bool { return h.counter("forwarded_table_full") > 0 })
	h.pages("a table is full", good, "BallastTableFull")
}
