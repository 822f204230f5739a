package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// keptNeighbours are those that the kernel keeps resolved for us in the host's namespace.
func (h *host) keptNeighbours() (kept []string) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		out, err := exec.Command("ip", "neigh", "show", "proto", "181").Output()
		for _, line := range strings.Split(string(out), "\n") {
			if fields := strings.Fields(line); slices.Contains(fields, "managed") && slices.Contains(fields, "extern_learn") {
				kept = append(kept, fields[0])
			}
		}
		return err
	}))
	slices.Sort(kept)
	return kept
}

func (h *host) awaitKept(when string, want ...string) {
	h.t.Helper()
	await.Nil(h.t, "kept neighbours "+when, func() error {
		if kept := h.keptNeighbours(); !slices.Equal(kept, want) {
			return fmt.Errorf("they are %v, want %v", kept, want)
		}
		return nil
	})
}

func TestNextHopsAreKeptResolvedUntilDetach(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.with("")
	h.start()
	h.await("the load balancer", func(s api.LBStatus) bool { return s.Ready })
	h.awaitKept("of a load balancer", "10.9.0.2", "10.9.0.3")
	h.awaitFile(h.with(", {name: s3, address: 10.9.0.4, id: 3}"))
	h.awaitKept("with another server", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	require(t, h.space.Do(func() error { // as doctor does
		_, err := netdev.NewResolver().Lookup(netip.MustParseAddr("10.9.0.9"))
		if !errors.Is(err, netdev.ErrUnresolved) {
			return fmt.Errorf("10.9.0.9: %v", err)
		}
		return netdev.ReleaseNeighbours() // as another instance's --detach does
	}))
	h.awaitKept("after another instance was detached", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	h.kill()
	h.awaitKept("of a process that was killed", "10.9.0.2", "10.9.0.3", "10.9.0.4")
	require(t, h.remove("test"))
	h.awaitKept("after --detach")
}

// Promise: Flushed neighbours (`ip neigh flush`) withdraw no VIP: packets go where they went while the kernel asks, for 3 s at most.
func TestFlushedNeighboursWithdrawNoVIP(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.role = "bgp-lb"
	r := h.bgpRouter("10.9.0.4", "")
	h.write("nodes: [{name: lb1, bgp: {as: 64600, router_id: 10.9.0.1, neighbors: [\"10.9.0.4 as 64512\"]}}]\n" + fmt.Sprintf(lbFile, ""))
	h.start()
	c, _ := r.establish()
	defer c.Close()
	if update := r.next(c); !bytes.HasSuffix(update, vipNLRI) {
		t.Fatalf("% x is announced", update)
	}
	for range 5 {
		require(t, h.space.Do(func() error { return exec.Command("ip", "neigh", "flush", "all").Run() }))
		h.awaitKept("after a flush", "10.9.0.2", "10.9.0.3")
		h.await("the next hops", func(s api.LBStatus) bool { return s.Ready })
	}
	h.expectMetrics("after five flushes", "ballast_bgp_withdrawals_total 0")
	// What fails is seen all the same: the peer answers no ARP any more.
	require(t, h.peer.Do(func() error { return exec.Command("ip", "link", "set", "eth0", "arp", "off").Run() }))
	require(t, h.space.Do(func() error { return exec.Command("ip", "neigh", "flush", "all").Run() }))
	h.await("no next hop", func(s api.LBStatus) bool {
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, "\n"), "no way is known to any of 2 servers")
	})
}

// The kernel would believe the old address for an hour here.
//
// Promise: A server whose link-layer address changes without an announcement is found again 4 s after a check that it did not answer.
// Public: cilium/cilium#14322 (the MAC address of a neighbour changes, and packets go to the old one).
func TestASilentServerIsLookedForAtAnotherLinkLayerAddress(t *testing.T) {
	t.Parallel()
	noRaces(t)
	const moved = "02:00:00:00:00:77"
	h := &lbHost{newHost(t, "moved-lb", []string{"10.9.0.1/24", "fd09::1/64"}, []string{"10.9.0.2/24", "10.9.0.3/24", "fd09::2/64"})}
	h.role = "lb"
	for _, family := range []string{"ipv4", "ipv6"} {
		require(t, h.space.Sysctl("net/"+family+"/neigh/eth0/base_reachable_time_ms", "3600000"))
	}
	h.write(strings.Replace(fmt.Sprintf(lbFile, ", {name: s6, address: \"fd09::2\", id: 3}"), "ports: [80],", "ports: [80], health: {check: tcp, interval: 500ms, timeout: 200ms},", 1))
	h.start()
	servers := []string{"10.9.0.2", "10.9.0.3", "fd09::2"}
	paths := func() (text string) {
		var services []api.ServiceStatus
		require(t, h.client.Get(t.Context(), api.PathServices, &services))
		for _, server := range services[0].Servers {
			text += server.Path + "\n"
		}
		return text
	}
	h.await("the load balancer", func(s api.LBStatus) bool { return s.Ready })
	await.True(t, "three paths", func() bool { return strings.Count(paths(), "eth0 ") == len(servers) })
	h.awaitKept("before", servers...)
	require(t, h.peer.Do(func() error { return exec.Command("ip", "link", "set", "eth0", "address", moved).Run() }))
	await.Nil(t, "all paths to lead there", func() error {
		if text := paths(); strings.Count(text, "eth0 "+moved) != len(servers) {
			return errors.New(text)
		}
		return nil
	})
	h.awaitKept("that were probed", servers...)
}
