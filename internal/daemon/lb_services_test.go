package daemon_test

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/model"
)

func (h *lbHost) do(method, path string, body any) (answer api.Changed, err error) {
	err = h.client.Do(h.t.Context(), method, path, body, &answer)
	return answer, err
}

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

type fields = map[string]any

func TestServicesComeChangeAndGoByCtl(t *testing.T) {
	h := newLBHost(t)
	h.awaitAfterStart()
	_, err := h.do(http.MethodPost, "/v1/services", fields{"name": "shop", "vip": "198.51.100.11", "ports": []int{80, 443}})
	require(t, err)
	_, err = h.do(http.MethodPost, "/v1/services", fields{"name": "dns", "vip": "198.51.100.12", "ports": []int{53}, "protocol": "udp"})
	require(t, err)
	shop := h.service("shop")
	if shop.Affinity != model.AffinityCookie || shop.Dispatch != model.DispatchRR || shop.Fallback != model.FallbackSecondChance ||
		shop.Forward != model.ForwardIPIP || shop.CookieBits != model.DirectCookieBits || shop.TableSlots != model.DefaultSlots {
		t.Errorf("without choices shop became %+v", shop.Service)
	}
	if dns := h.service("dns"); dns.Affinity != model.AffinityHash || dns.Dispatch != model.DispatchMaglev {
		t.Errorf("without choices dns became %+v", dns.Service)
	}
	_, err = h.post("/v1/services/shop/servers", fields{"name": "s1", "address": "10.9.0.2", "weight": 1})
	require(t, err)

	changed, err := h.do(http.MethodPatch, "/v1/services/shop", fields{"dispatch": "hash", "fallback": "hash", "ports": []int{443}})
	require(t, err)
	want := []string{"service shop: ports [80 443] -> [443]", "service shop: dispatch rr -> hash", "service shop: fallback second-chance -> hash"}
	if !slices.Equal(changed.Changes, want) {
		t.Errorf("the change did %q, not %q", changed.Changes, want)
	}
	h.kill()
	h.start()
	h.await("the new process", func(s api.LBStatus) bool { return s.Ready })
	if shop := h.service("shop"); shop == nil || shop.Dispatch != model.DispatchHash || len(shop.Servers) != 1 || shop.TableSlots != model.DefaultSlots {
		t.Errorf("after kill -9 shop is %+v", shop)
	}
	for _, name := range []string{"shop", "web"} {
		_, err = h.do(http.MethodDelete, "/v1/services/"+name, nil)
		require(t, err)
		if left := h.service(name); left != nil {
			t.Errorf("removed, but still there: %+v", left)
		}
	}
	_, err = h.post("/v1/config/reset", nil)
	require(t, err)
	h.expectServers("after reset", "s1 active", "s2 active")
}

func TestServicesThatMakeNoSenseAreRefusedWithTheReason(t *testing.T) {
	h := newLBHost(t)
	h.awaitAfterStart()
	for _, c := range []struct {
		method, path string
		body         any
		want         string
	}{
		{"POST", "", fields{"name": "web", "vip": "198.51.100.11", "ports": []int{80}}, "already"},
		{"POST", "", fields{"name": "two", "vip": "198.51.100.10", "ports": []int{80}}, "web"},
		{"POST", "", fields{"name": "two", "vip": "198.51.100.11"}, "1 to 16 ports"},
		{"POST", "", fields{"name": "two", "ports": []int{80}}, "vip"},
		{"POST", "", fields{"name": "two", "vip": "198.51.100.11", "ports": []int{80}, "colour": "red"}, "colour"},
		{"POST", "", fields{"name": "two", "vip": "198.51.100.11", "ports": []int{80}, "servers": []fields{{"address": "10.9.0.2"}}}, "server add"},
		{"PATCH", "/none", fields{"dispatch": "p2c"}, "no service"},
		{"PATCH", "/web", fields{"dispatch": "best"}, "use one of hash, maglev, rr"},
		{"PATCH", "/web", fields{"affinity": "hash"}, "dispatch: maglev"},
		{"PATCH", "/web", fields{"return": "through"}, "second-chance needs agents"},
		{"PATCH", "/web", fields{"table_slots": 100}, "not a table size"},
		{"PATCH", "/web", fields{"cookie_bits": 3}, "out of range"},
		{"PATCH", "/web", fields{"cookie_bits": 12}, "cookies of another width"},
		{"PATCH", "/web", fields{"name": "other"}, "cannot become"},
		{"PATCH", "/web", fields{"servers": []fields{{"name": "s1", "address": "10.9.0.4"}}}, "server add"},
		{"DELETE", "/none", nil, "no service"},
	} {
		_, err := h.do(c.method, "/v1/services"+c.path, c.body)
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Code != http.StatusBadRequest || !strings.Contains(refused.Message, c.want) {
			t.Errorf("%s %s %v: %v, wanted a refusal that says %q", c.method, c.path, c.body, err, c.want)
		}
	}
	h.expectServers("after all", "s1 active", "s2 active")
	var diff api.Changed
	require(t, h.client.Get(t.Context(), api.PathConfigDiff, &diff))
	if len(diff.Changes) != 0 {
		t.Errorf("refused changes left traces: %q", diff.Changes)
	}
}

func TestResetCountersBeginAtZero(t *testing.T) {
	h := newLBHost(t)
	h.awaitAfterStart()
	vip := netip.MustParseAddr("198.51.100.12")
	_, err := h.do(http.MethodPost, "/v1/services", fields{"name": "dns", "vip": vip, "ports": []int{53}, "protocol": "udp"})
	require(t, err)
	_, err = h.post("/v1/services/dns/servers", fields{"name": "s1", "address": "10.9.0.2", "weight": 1})
	require(t, err)
	require(t, h.peer.Route(netip.PrefixFrom(vip, 32), 0, netspace.NextHop{Interface: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}))

	const packets = 3
	send(t, h.peer, vip, packets)
	for end := time.Now().Add(hostDeadline); h.service("dns").Servers[0].Packets < packets; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the packets were not counted: %+v", h.service("dns"))
		}
	}
	_, err = h.do(http.MethodDelete, api.PathCounters, nil)
	require(t, err)
	dns := h.service("dns")
	if server := dns.Servers[0]; server.Packets != 0 || server.Bytes != 0 || dns.Verdicts["forwarded_by_hash"] != (api.Traffic{}) {
		t.Errorf("after the reset: %+v, %+v", server, dns.Verdicts)
	}
	send(t, h.peer, vip, 1)
	for end := time.Now().Add(hostDeadline); h.service("dns").Servers[0].Packets != 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after the reset counting does not go on: %+v", h.service("dns"))
		}
	}
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
