package daemon_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func init() {
	dir, role := os.Getenv(daemonDir), os.Getenv(daemonProcess)
	reporting, isReporting := map[string]string{"s1-agent": "s1", "s2-agent": "s2"}[role]
	if role != "agent" && role != "generic-agent" && role != "remote-agent" && role != "told-agent" && role != "function-agent" && role != besideAgent && !isReporting {
		return
	}
	options := agent.Options{
		Config: filepath.Join(dir, "ballast.yaml"), Instance: "test", RunDir: filepath.Join(dir, "run"),
		XDPMode: attach.XDPAuto, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if role == "generic-agent" {
		options.XDPMode = attach.XDPGeneric
	}
	if role == "remote-agent" {
		options.Controllers, options.TLSDir, options.Metrics = []string{"10.9.0.1:6443"}, filepath.Join(dir, "tls"), agentMetrics
	}
	if isReporting {
		options.Name, options.Controllers, options.TLSDir = reporting, []string{"10.9.0.1:6443"}, filepath.Join(dir, "tls")
	}
	if role == "told-agent" {
		options.Config, options.Controllers, options.TLSDir, options.StateDir = "", []string{"10.9.0.1:6443"}, filepath.Join(dir, "tls"), filepath.Join(dir, "state")
		options.Name, options.Interfaces, options.TunnelsSettle = "s2", []string{"eth0"}, time.Second
	}
	if role == besideAgent {
		options.Instance, options.Interfaces = besideAgent, []string{"eth0"}
	}
	if role == "function-agent" {
		options.GatewayTable, options.Interfaces = functionTable, []string{"eth0"}
	}
	err := agent.Run(context.Background(), options)
	fmt.Fprintln(os.Stderr, "agent:", err)
	os.Exit(1)
}

const agentFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: %d
  cookie: {1: 00112233445566778899aabbccddeeff, 2: ffeeddccbbaa99887766554433221100}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], servers: [
      {name: s1, address: 10.9.0.2, id: 1}, {name: s2, address: 10.9.0.3, id: 2}]}
`

const agentMetrics = "10.9.0.2:9436" // where an agent of controllers serves them

// agentHost is a server whose peer is its client.
type agentHost struct {
	*host
	from netip.Addr // of the client; invalid: its address on the way there
}

func newAgentHost(t *testing.T) *agentHost {
	t.Helper()
	h := &agentHost{host: newHost(t, "agent", []string{"10.9.0.2/24"}, []string{"10.9.0.1/24"})}
	vip := netip.MustParsePrefix("198.51.100.10/32")
	require(t, h.space.AddAddress("lo", vip))
	require(t, h.peer.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
	return h
}

// newReadyAgent has it run by agentFile.
func newReadyAgent(t *testing.T) *agentHost {
	t.Helper()
	h := newAgentHost(t)
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	return h
}

func (h *agentHost) await(what string, done func(api.AgentStatus) bool) api.AgentStatus {
	h.t.Helper()
	return awaitStatus(h.host, what, done)
}

func (h *agentHost) counters() map[string]uint64 {
	h.t.Helper()
	counters, err := h.client.Counters(h.t.Context())
	require(h.t, err)
	return counters
}

// echo serves until the test ends and returns one connection to it.
func (h *agentHost) echo() net.Conn {
	h.t.Helper()
	var listener net.Listener
	require(h.t, h.space.Do(func() (err error) { listener, err = net.Listen("tcp", "198.51.100.10:80"); return err }))
	h.t.Cleanup(func() { listener.Close() })
	go h.echoes(listener)
	return h.dial()
}

// echoes sends back what comes until the listener is closed.
func (h *agentHost) echoes(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() { defer conn.Close(); io.Copy(conn, conn) }()
	}
}

// dial connects to what echo serves.
func (h *agentHost) dial() (conn net.Conn) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() (err error) {
		dialer := net.Dialer{Timeout: hostDeadline}
		if h.from.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.from, 0))
		}
		conn, err = dialer.Dial("tcp", "198.51.100.10:80")
		return err
	}))
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

func exchange(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(hostDeadline))
	for i := range uint32(200) {
		var back uint32
		require(t, errors.Join(binary.Write(conn, binary.BigEndian, i), binary.Read(conn, binary.BigEndian, &back)))
		if back != i {
			t.Fatalf("sent %d, got %d", i, back)
		}
	}
}

func TestAgentServesReloadsAndSurvivesItsOwnDeath(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	sum := h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	status := h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	if status.Role != "agent" || len(status.Services) != 1 || len(status.Problems) != 0 || status.Interfaces["eth0"] == "" {
		t.Errorf("status %+v", status)
	}
	conn := h.echo()
	exchange(t, conn)

	sum = h.write(fmt.Sprintf(agentFile, 2))
	h.await("the rotation", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum && s.Generation == 2 })
	exchange(t, conn)

	h.write("keys: [")
	refused := h.await("the refusal", func(s api.AgentStatus) bool { return s.Config.Error != "" })
	if refused.Config.SHA256 != sum || !strings.Contains(refused.Config.Error, "ballast.yaml:1") {
		t.Errorf("refused file: %+v", refused.Config)
	}
	if metrics := h.metrics(); !strings.Contains(metrics, "ballast_config_refused 1\n") || !strings.Contains(metrics, "\ngo_gc_heap_live_bytes ") {
		t.Errorf("metrics do not tell of it, or of memory: %s", metrics)
	}
	exchange(t, conn)

	h.kill()
	exchange(t, conn)
	sum = h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the second process", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	exchange(t, conn)
	require(t, h.process.Process.Signal(unix.SIGHUP))
	exchange(t, conn)
	counters := h.counters()
	if counters["ingress_restored"] < 1000 || counters["egress_marked"] < 800 || counters["ingress_bad_cookie"] != 0 ||
		counters["egress_unmarked_older_than_agent"] != 0 {
		t.Errorf("counters %v", counters)
	}
}

// Load balancers go on with the old ones.
func TestAnAgentRefusesAFileThatReplacesAKeyOrItsId(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	file := fmt.Sprintf(agentFile, 1)
	sum := h.write(file)
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready })
	conn := h.echo()
	exchange(t, conn)
	swap := strings.NewReplacer("id: 1}", "id: 2}", "id: 2}", "id: 1}")
	for what, change := range map[string]string{
		"the key of an epoch in use has changed":                      strings.Replace(file, "00112233", "ffffffff", 1),
		"has changed from 1 to 5":                                     strings.Replace(file, "id: 1}", "id: 5}", 1),
		"services.web: the id of this server":                         swap.Replace(file),
		"services.api: the id of this server":                         strings.Replace(swap.Replace(file), "name: web", "name: api", 1),
		"services.web: the id of this server has changed from 1 to 3": strings.NewReplacer("name: s1", "name: s7", "id: 1}", "id: 3}").Replace(file),
	} {
		if change == file {
			t.Fatalf("%s: the file is as it was", what)
		}
		h.write(change)
		refused := h.await(what, func(s api.AgentStatus) bool { return strings.Contains(s.Config.Error, what) })
		if refused.Config.SHA256 != sum {
			t.Errorf("%s: it runs by %+v", what, refused.Config)
		}
		exchange(t, conn)
		h.write(file)
		h.await("the old file", func(s api.AgentStatus) bool { return s.Config.Error == "" })
	}
}

func TestAnAgentSaysThatItIsOne(t *testing.T) {
	t.Parallel()
	h := newReadyAgent(t)
	for _, path := range []string{api.PathTrace, api.PathConnections, api.PathConfigDiff} {
		if err := h.client.Get(t.Context(), path, nil); err == nil || !strings.Contains(err.Error(), "this is an agent") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What it has begun by then must not keep it from ending.
func TestAnAgentEndsWhoseAddressForMetricsIsTaken(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	h.role = "remote-agent"
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s1"})))
	require(t, h.space.Do(func() error {
		taken, err := net.Listen("tcp", agentMetrics)
		if err == nil {
			t.Cleanup(func() { taken.Close() })
		}
		return err
	}))
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	if err := h.wait(); err == nil || !strings.Contains(h.output.String(), "serve metrics: listen tcp "+agentMetrics) {
		t.Errorf("%v: %s", err, h.output.String())
	}
}

// Promise: An agent does not start on a host with `tcp_timestamps=0` or routes with `features tcp_usec_ts`, and
// gives the reason.
// Also held by TestAgentRefusesAHostWithMicrosecondTimestamps.
func TestAgentRefusesAHostWithoutTimestamps(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	require(t, h.space.Sysctl("net/ipv4/tcp_timestamps", "0"))
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	if err := h.wait(); err == nil {
		t.Error("the agent ended without an error")
	}
	if !strings.Contains(h.output.String(), "sysctl -w net.ipv4.tcp_timestamps=1") {
		t.Errorf("no remedy in %q", h.output.String())
	}
}

func TestAgentRefusesAHostWithMicrosecondTimestamps(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	require(t, h.space.Do(func() error {
		const tcpUsecTS = 1 << 4
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		_, clients, err := net.ParseCIDR("203.0.113.0/24")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Dst: clients, Features: tcpUsecTS}))
	}))
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	if err := h.wait(); err == nil {
		t.Error("the agent ended without an error")
	}
	if !strings.Contains(h.output.String(), "ip route change it without") {
		t.Errorf("no remedy in %q", h.output.String())
	}
}

// Promise: A daemon that cannot work is not ready, and `/healthz` answers 503 with the reason.
// Also held by TestAgentOfANodeIsReadyWherePacketsAreTaken.
func TestAgentSaysThatTheServiceAddressIsMissing(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.write(strings.ReplaceAll(fmt.Sprintf(agentFile, 1), "198.51.100.10", "198.51.100.99"))
	h.start()
	h.await("the complaint", func(s api.AgentStatus) bool {
		return !s.Ready && len(s.Problems) == 1 && strings.Contains(s.Problems[0], "ip address add 198.51.100.99/32 dev lo")
	})
	require(t, h.space.AddAddress("lo", netip.MustParsePrefix("198.51.100.99/32")))
	h.await("the address", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	require(t, h.space.Sysctl("net/ipv4/tcp_timestamps", "0"))
	h.await("the sysctl to be seen", func(s api.AgentStatus) bool {
		return !s.Ready && strings.Contains(s.Problems[0], "sysctl -w net.ipv4.tcp_timestamps=1")
	})
	require(t, h.space.Sysctl("net/ipv4/tcp_timestamps", "1"))
	h.await("the sysctl to be seen again", func(s api.AgentStatus) bool { return s.Ready })
	h.write(strings.ReplaceAll(fmt.Sprintf(agentFile, 1), "10.9.0.2", "10.9.0.9"))
	h.await("no service", func(s api.AgentStatus) bool { return !s.Ready && says(s.NotReady, "no service names this host") })
	h.write(strings.ReplaceAll(fmt.Sprintf(agentFile, 1), "198.51.100.10", "198.51.100.99"))
	h.await("the service again", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	address, err := netlink.ParseAddr("10.9.0.2/24")
	require(t, err)
	h.onDevice(func(l netlink.Link) error { return netlink.AddrDel(l, address) })
	h.await("the loss of the address", func(s api.AgentStatus) bool {
		return says(s.Problems, "only connections of before go on: no service names this host")
	})
}
