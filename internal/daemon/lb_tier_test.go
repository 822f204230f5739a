package daemon_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// tierFile is run by lb1 of the first tier, whose peer is the second, and by lb2 of the second, whose peer is the first.
const tierFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
nodes:
  - {name: lb1, tier: first}
  - {name: lb2, tier: second, address: %s, id: 1}
  - {name: lb3, tier: second, address: 10.9.0.3, id: 2}
node_health: {check: http, path: /healthz, port: 9435, interval: 200ms, timeout: 200ms, rise: 2, fall: 3}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], affinity: table, table: {entries: 4096, index_bits: 4}, servers: [{name: s1, address: 10.9.0.4, id: 1}]}
`

func newTierHost(t *testing.T, role string) *lbHost {
	t.Helper()
	return &lbHost{newHost(t, role, []string{"10.9.0.1/24"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.4/24"})}
}

// answer says at the address of a node that it is there; end takes it away.
func (h *lbHost) answer(address string) (end func()) {
	h.t.Helper()
	var listener net.Listener
	require(h.t, h.peer.Do(func() (err error) {
		listener, err = net.Listen("tcp", address+":9435")
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ready\n")) })}
	go server.Serve(listener)
	end = func() { server.Close() }
	h.t.Cleanup(end)
	return end
}

// awaitNodes waits for the health of the second tier.
func (h *lbHost) awaitNodes(want ...string) {
	h.t.Helper()
	h.await(fmt.Sprint(want), func(s api.LBStatus) bool {
		if !s.Ready || s.Tier == nil {
			return false
		}
		var have []string
		for _, node := range s.Tier.Second {
			have = append(have, node.Name+" "+node.Health)
		}
		return slices.Equal(have, want)
	})
}

// connect sends SYNs to the service from the peer until the test ends or stop says so; nobody answers them.
func (h *lbHost) connect(stop func() bool) {
	h.t.Helper()
	vip := netip.MustParseAddr("198.51.100.10")
	require(h.t, h.peer.Route(netip.PrefixFrom(vip, 32), 0, netspace.NextHop{Interface: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}))
	for end := time.Now().Add(hostDeadline); !stop(); {
		if time.Now().After(end) {
			h.t.Fatal("packets do not show")
		}
		require(h.t, h.peer.Do(func() error {
			dialer := net.Dialer{Timeout: 20 * time.Millisecond}
			if connection, err := dialer.Dial("tcp", "198.51.100.10:80"); err == nil {
				connection.Close()
			}
			return nil
		}))
	}
}

func TestTheFirstTierNoticesWhichNodesOfTheSecondAreDead(t *testing.T) {
	t.Parallel()
	h := newTierHost(t, "first-lb")
	endSecond, endThird := h.answer("10.9.0.2"), h.answer("10.9.0.3")
	h.write(fmt.Sprintf(tierFile, "10.9.0.2"))
	h.start()
	h.awaitNodes("lb2 healthy", "lb3 healthy")
	good := h.scrape()
	endThird()
	h.awaitNodes("lb2 healthy", "lb3 unhealthy")
	for _, want := range []string{`ballast_node_healthy{id="1",node="lb2"} 1`, `ballast_node_healthy{id="2",node="lb3"} 0`, `ballast_node_packets_total{id="2",node="lb3",service="web"} 0`} {
		h.eventually("the tables to follow: "+want, func() bool { return strings.Contains(h.metrics(), want) })
	}
	h.pages("a node of the second tier is dead", good, "BallastNodeUnhealthy")
	packets := func(name string) (sent uint64) {
		for _, node := range h.service("web").Nodes {
			if node.Name == name {
				sent = node.Packets
			}
		}
		return sent
	}
	h.connect(func() bool { return packets("lb2") >= 8 })
	if sent := packets("lb3"); sent != 0 {
		t.Errorf("the dead node was sent %d packets", sent)
	}
	if _, err := h.client.Fleet().DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"}); err == nil || !strings.Contains(err.Error(), "no healthy one of the second tier") {
		t.Errorf("drain of the last healthy one: %v", err)
	}

	h.kill()
	h.start()
	h.awaitNodes("lb2 healthy", "lb3 unhealthy")
	h.answer("10.9.0.3")
	h.awaitNodes("lb2 healthy", "lb3 healthy")
	h.connect(func() bool { return packets("lb3") > 0 })
	h.narrow("10.9.0.3", 1300, 0) // forged: it proves nothing
	h.awaitMetric(`ballast_path_errors_total{outcome="forged"} 1`)
	h.narrow("10.9.0.3", 1400, pathid.Identification(pathid.Secret(filePlacement, netip.MustParseAddr("10.9.0.3"))))
	h.await("the way to a node to be narrower", func(s api.LBStatus) bool {
		return strings.Contains(s.Tier.Second[1].Path, "mtu 1400") && strings.Contains(s.Tier.Second[0].Path, "mtu 1500")
	})
	nodes, err := h.client.Fleet().ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	require(t, err)
	if n := nodes.Nodes; len(n) != 3 || n[0].Name != "lb1" || n[0].Node.GetTier() != "first" || n[1].Health != "healthy" || n[1].Node.GetId() != 1 {
		t.Errorf("nodes %v", n)
	}
	endSecond()
}

// filePlacement is the placement key of the files.
var filePlacement = [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func (h *lbHost) awaitMetric(line string) {
	h.t.Helper()
	h.await(line, func(api.LBStatus) bool {
		stream, err := h.client.Stream(h.t.Context(), api.PathMetrics)
		require(h.t, err)
		defer stream.Close()
		text, err := io.ReadAll(stream)
		require(h.t, err)
		return strings.Contains(string(text), line)
	})
}

// narrow says as a router does that tunnels to an address have to be smaller.
func (h *lbHost) narrow(address string, mtu, identification uint16) {
	h.t.Helper()
	message := make([]byte, 8+20)
	message[0], message[1] = 3, 4 // RFC 1191: fragmentation needed
	binary.BigEndian.PutUint16(message[6:], mtu)
	quoted := message[8:]
	quoted[0], quoted[9] = 0x45, unix.IPPROTO_IPIP
	binary.BigEndian.PutUint16(quoted[4:], identification)
	copy(quoted[12:], netip.MustParseAddr("10.9.0.1").AsSlice())
	copy(quoted[16:], netip.MustParseAddr(address).AsSlice())
	var sum uint32
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16))
	require(h.t, h.peer.Do(func() error {
		socket, err := net.ListenPacket("ip4:icmp", "10.9.0.4")
		if err != nil {
			return err
		}
		defer socket.Close()
		_, err = socket.WriteTo(message, &net.IPAddr{IP: net.IP{10, 9, 0, 1}})
		return err
	}))
}

func TestATraceOnTheFirstTierNamesTheNode(t *testing.T) {
	t.Parallel()
	h := newTierHost(t, "first-lb")
	h.awaitFileAfter(fmt.Sprintf(tierFile, "10.9.0.2"))
	event := h.connectUntil(h.events("service=web"))
	if want := map[uint16]string{1: "lb2", 2: "lb3"}[event.ID]; event.Server != want || want == "" || event.Verdict != "forwarded_new" {
		t.Errorf("%+v", event)
	}
}

// awaitFileAfter starts the daemon with a file.
func (h *lbHost) awaitFileAfter(content string) {
	h.t.Helper()
	sum := h.write(content)
	h.start()
	h.awaitFile(sum)
}

// Promise: When the daemon of a second-tier node ends, other nodes keep its connections until it is back.
// Promise: A second-tier node whose address is not its host's answers 503 on `/healthz`, so that a checked node
// gets no traffic.
func TestANodeOfTheSecondTierOpensWhatTheFirstSends(t *testing.T) {
	t.Parallel()
	h := newTierHost(t, "second-lb")
	h.awaitFileAfter(fmt.Sprintf(tierFile, "10.9.0.1"))
	status := h.await("s1 to be found", func(s api.LBStatus) bool { return len(s.Problems) == 0 })
	if s := status.Tier; status.Name != "lb2" || s == nil || s.Tier != model.TierSecond || s.ID != 1 || s.Second != nil {
		t.Errorf("%s is %+v", status.Name, status.Tier)
	}
	opened := func() uint64 { return h.service("web").Verdicts["forwarded_no_timestamp"].Packets }
	h.tunnelUntil("opened", func() bool { return opened() > 0 })
	if code := h.health(); code != http.StatusOK {
		t.Errorf("its health is %d", code)
	}

	h.awaitFile(h.write(fmt.Sprintf(tierFile, "10.9.0.77")))
	status = h.await("the problem", func(s api.LBStatus) bool { return len(s.Problems) == 1 })
	if !strings.Contains(status.Problems[0], "lb2") || !strings.Contains(status.Problems[0], "10.9.0.77 is none of this host's") {
		t.Errorf("problems %q", status.Problems)
	}
	if code := h.health(); code != http.StatusServiceUnavailable {
		t.Errorf("its health is %d", code)
	}
	before, passed := opened(), h.counter("passed_unsupported")
	h.tunnelUntil("left alone", func() bool { return h.counter("passed_unsupported") > passed })
	if opened() != before {
		t.Error("packets to an address that is not its own any more are opened")
	}
}

func (h *lbHost) counter(name string) uint64 {
	h.t.Helper()
	var counters api.Counters
	require(h.t, h.client.Get(h.t.Context(), api.PathCounters, &counters))
	return counters.Counters[name]
}

// tunnelUntil sends SYNs as the first tier does until they show.
func (h *lbHost) tunnelUntil(what string, shows func() bool) {
	h.t.Helper()
	var mac net.HardwareAddr
	require(h.t, h.space.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = device.Attrs().HardwareAddr
		}
		return err
	}))
	for end := time.Now().Add(hostDeadline); !shows(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			var counters api.Counters
			require(h.t, h.client.Get(h.t.Context(), api.PathCounters, &counters))
			maps.DeleteFunc(counters.Counters, func(_ string, packets uint64) bool { return packets == 0 })
			h.t.Fatalf("packets are not %s: %v", what, counters.Counters)
		}
		require(h.t, h.peer.Do(func() error { return sendTunnelled(mac, net.IP{10, 9, 0, 2}, net.IP{10, 9, 0, 1}) }))
	}
}

// awaitHealth waits for what the first tier, or who announces routes, is answered.
func (h *lbHost) awaitHealth(when string, code int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("/healthz %d %s", code, when), func() bool { return h.health() == code })
}

// health asks the daemon as the first tier does.
func (h *lbHost) health() (code int) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() error {
		connection, err := net.Dial("tcp", "10.9.0.1:9435")
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return connection, nil }}}
		answer, err := client.Get("http://10.9.0.1:9435" + api.PathHealth)
		if err != nil {
			return errors.Join(err, connection.Close())
		}
		code = answer.StatusCode
		return answer.Body.Close()
	}))
	return code
}

// Promise: Without controllers, tiers and unhealthy nodes are kept, and after 5 s each first-tier node judges by
// its own checks.
func TestWithoutControllersANodeKeepsItsTierAndWhoIsDown(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	hub, end := h.control(1)
	h.start()
	view := viewOf(1, nil, 4)
	view.Nodes = []model.Node{{Name: "lb1", Tier: model.TierFirst}, {Name: "lb2", Tier: model.TierSecond, Address: netip.MustParseAddr("10.9.0.2"), ID: 1},
		{Name: "lb3", Tier: model.TierSecond, Address: netip.MustParseAddr("10.9.0.3"), ID: 2}}
	fleet := model.Fleet{Nodes: view.Nodes}
	fleet.ApplyDefaults()
	view.NodeHealth = fleet.NodeHealth
	view.Second = &engine.ServiceView{Service: *fleet.SecondTier(), Down: []uint16{2}}
	hub.Topics.SetState(view)
	h.awaitNodes("lb2 unchecked", "lb3 unhealthy")
	hub.Topics.SetState(withNodesOf(viewOf(2, nil, 4, 5), view))
	h.await("the next state", func(s api.LBStatus) bool { return s.Revision == 2 })
	h.awaitNodes("lb2 unchecked", "lb3 unhealthy")
	end()
	h.kill()
	h.start()
	h.awaitNodes("lb2 unchecked", "lb3 unhealthy")

	hub, end = h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(3, nil, 4))
	h.await("one tier", func(s api.LBStatus) bool { return s.Revision == 3 && s.Tier == nil })
}

// withNodesOf is a view with the nodes of another.
func withNodesOf(view, of *engine.View) *engine.View {
	view.Nodes, view.NodeHealth, view.Second = of.Nodes, of.NodeHealth, of.Second
	return view
}
