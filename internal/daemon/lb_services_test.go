package daemon_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// service returns a service as it is served; nil: there is none.
func (h *lbHost) service(name string) *api.ServiceStatus {
	h.t.Helper()
	var services []api.ServiceStatus
	require(h.t, h.client.Get(h.t.Context(), api.PathServices, &services))
	for i := range services {
		if services[i].Name == name {
			return &services[i]
		}
	}
	return nil
}

// put adds a service, or sets what is given of one.
func (h *lbHost) put(s *ballastv1.Service) (changes []string, err error) {
	answer, err := h.client.Fleet().PutService(h.t.Context(), &ballastv1.PutServiceRequest{Service: s, Force: true})
	return answer.GetChanges(), err
}

func (h *lbHost) add(service, name, address string) {
	h.t.Helper()
	_, err := h.client.Fleet().AddServer(h.t.Context(), &ballastv1.AddServerRequest{Service: service, Server: &ballastv1.Server{Name: name, Address: address}})
	require(h.t, err)
}

func TestServicesComeChangeAndGoByCtl(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	_, err := h.put(&ballastv1.Service{Name: "shop", Vip: "198.51.100.11", Ports: []uint32{80, 443}})
	require(t, err)
	_, err = h.put(&ballastv1.Service{Name: "dns", Vip: "198.51.100.12", Ports: []uint32{53}, Protocol: "udp"})
	require(t, err)
	shop := h.service("shop")
	if shop.Affinity != model.AffinityCookie || shop.Dispatch != model.DispatchRR || shop.Fallback != model.FallbackSecondChance ||
		shop.Forward != model.ForwardIPIP || shop.CookieBits != model.DirectCookieBits || shop.TableSlots != model.DefaultSlots {
		t.Errorf("without choices shop became %+v", shop.Service)
	}
	if dns := h.service("dns"); dns.Affinity != model.AffinityHash || dns.Dispatch != model.DispatchMaglev {
		t.Errorf("without choices dns became %+v", dns.Service)
	}
	h.add("shop", "s1", "10.9.0.2")

	changes, err := h.put(&ballastv1.Service{Name: "shop", Dispatch: "hash", Fallback: "hash", Ports: []uint32{443}})
	require(t, err)
	want := []string{"service shop: ports 80,443 -> 443", "service shop: dispatch rr -> hash", "service shop: fallback second-chance -> hash"}
	if !slices.Equal(changes, want) {
		t.Errorf("the change did %q, not %q", changes, want)
	}
	h.kill()
	h.start()
	h.await("the new process", func(s api.LBStatus) bool { return s.Ready })
	if shop := h.service("shop"); shop == nil || shop.Dispatch != model.DispatchHash || len(shop.Servers) != 1 || shop.TableSlots != model.DefaultSlots {
		t.Errorf("after kill -9 shop is %+v", shop)
	}
	for _, name := range []string{"shop", "web"} {
		_, err = h.client.Fleet().RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: name, Force: true})
		require(t, err)
		if left := h.service(name); left != nil {
			t.Errorf("removed, but still there: %+v", left)
		}
	}
	was := h.servers()
	would, err := h.post(api.DryRun("/v1/config/reset"), nil)
	if require(t, err); len(would.Changes) == 0 || !slices.Equal(h.servers(), was) {
		t.Errorf("a dry run of the reset tells %q, and leaves %q of %q", would.Changes, h.servers(), was)
	}
	_, err = h.post("/v1/config/reset", nil)
	require(t, err)
	h.expectServers("after reset", "s1 active", "s2 active")
}

func TestAFileThatCtlAppliesIsNotTheOneThatTheNodeRunsBy(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	now, err := h.client.Fleet().GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	require(t, err)
	for _, weight := range []uint32{5, 1} {
		now.Services[0].Servers[0].Weight = &weight
		_, err = h.client.Fleet().Apply(t.Context(), &ballastv1.ApplyRequest{Services: now.Services, Force: true})
		require(t, err)
		_, err = h.post("/v1/config/reload", nil)
		require(t, err)
		if got := h.service("web").Servers[0].Weight; uint32(got) != weight {
			t.Errorf("applied with weight %d, it has %d", weight, got)
		}
		var diff api.Changed
		require(t, h.client.Get(t.Context(), api.PathConfigDiff, &diff))
		if other := len(diff.Changes) > 0; other != (weight == 5) {
			t.Errorf("with weight %d the node differs from its file by %q", weight, diff.Changes)
		}
	}
}

func TestServicesThatMakeNoSenseAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	vip, ports := "198.51.100.11", []uint32{80}
	for _, c := range []struct {
		service *ballastv1.Service
		want    string
	}{
		{&ballastv1.Service{Name: "two", Vip: "198.51.100.10", Ports: ports}, "web"},
		{&ballastv1.Service{Name: "two", Vip: vip}, "1 to 16 ports"},
		{&ballastv1.Service{Name: "two", Ports: ports}, "vip"},
		{&ballastv1.Service{Vip: vip, Ports: ports}, "service.name: missing"},
		{&ballastv1.Service{Name: "web", Dispatch: "best"}, "use one of hash, maglev, rr"},
		{&ballastv1.Service{Name: "web", Affinity: "hash"}, "dispatch: maglev"},
		{&ballastv1.Service{Name: "web", Return: "through"}, "second-chance needs agents"},
		{&ballastv1.Service{Name: "web", TableSlots: 100}, "not a table size"},
		{&ballastv1.Service{Name: "web", CookieBits: 3}, "out of range"},
		{&ballastv1.Service{Name: "web", CookieBits: 12}, "cookies of another width"},
		{&ballastv1.Service{Name: "web", Servers: []*ballastv1.Server{{Name: "s1", Address: "10.9.0.4"}}}, "server add"},
	} {
		_, err := h.put(c.service)
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, wanted a refusal that says %q", c.service, err, c.want)
		}
	}
	_, err := h.client.Fleet().RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "none"})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("removing what is not there: %v", err)
	}
	h.expectServers("after all", "s1 active", "s2 active")
	var diff api.Changed
	require(t, h.client.Get(t.Context(), api.PathConfigDiff, &diff))
	if len(diff.Changes) != 0 {
		t.Errorf("refused changes left traces: %q", diff.Changes)
	}
}

func TestResetCountersBeginAtZero(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	vip := netip.MustParseAddr("198.51.100.12")
	_, err := h.put(&ballastv1.Service{Name: "dns", Vip: vip.String(), Ports: []uint32{53}, Protocol: "udp"})
	require(t, err)
	h.add("dns", "s1", "10.9.0.2")
	require(t, h.peer.Route(netip.PrefixFrom(vip, 32), 0, netspace.NextHop{Interface: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}))

	const packets = 3
	send(t, h.peer, vip, packets)
	await.Nil(t, "the packets are counted", func() error {
		dns := h.service("dns")
		if dns.Servers[0].Packets != packets || dns.Verdicts["forwarded_by_hash"].Packets != packets {
			return fmt.Errorf("they are not: %+v", dns)
		}
		return nil
	})
	require(t, h.client.Do(t.Context(), http.MethodDelete, api.PathCounters, nil, nil))
	dns := h.service("dns")
	if server := dns.Servers[0]; server.Packets != 0 || server.Bytes != 0 || dns.Verdicts["forwarded_by_hash"] != (api.Traffic{}) {
		t.Errorf("after the reset: %+v, %+v", server, dns.Verdicts)
	}
	send(t, h.peer, vip, 1)
	await.True(t, "counting goes on after the reset", func() bool { return h.service("dns").Servers[0].Packets == 1 })
}

// send sends datagrams to port 53.
func send(t *testing.T, from *netspace.Space, to netip.Addr, count int) {
	t.Helper()
	require(t, from.Do(func() error {
		connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 53)))
		if err != nil {
			return err
		}
		defer connection.Close()
		for range count {
			if _, err := connection.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestAHostThatFailsIsTakenOutOfAllItsServicesTogether(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	const services = 40
	var file strings.Builder
	keys, _, _ := strings.Cut(lbFile, "services:")
	file.WriteString(keys + "services:\n")
	for i := range services {
		fmt.Fprintf(&file, "  - {name: web%d, vip: 198.51.100.%d, ports: [80], table_slots: 251, health: {check: tcp, interval: 200ms, timeout: 100ms, all_down: none}, "+
			"servers: [{name: s1, address: 10.9.0.99, id: 1}]}\n", i, i+1)
	}
	sum := h.write(file.String())
	h.start()
	h.awaitFile(sum)
	var before, after api.LBStatus
	require(t, h.client.Get(t.Context(), api.PathStatus, &before))
	await.Nil(t, "it is taken out of all services", func() error {
		var saved struct{ Unhealthy map[string]any }
		content, err := os.ReadFile(filepath.Join(h.dir, "state", "test", "state.json"))
		require(t, err)
		require(t, json.Unmarshal(content, &saved))
		if down := len(saved.Unhealthy); down < services {
			return fmt.Errorf("of %d only", down)
		}
		return nil
	})
	require(t, h.client.Get(t.Context(), api.PathStatus, &after))
	if changes := after.Generation - before.Generation; changes > services/2 {
		t.Errorf("tables changed %d times for %d services", changes, services)
	}
}
