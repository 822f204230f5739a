package daemon_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

const agentDeadline = 20 * time.Second

// A daemon needs a process of its own: it works in the network namespace that it was started in.
func init() {
	dir := os.Getenv("BALLAST_TEST_AGENT")
	if dir == "" {
		return
	}
	err := daemon.RunAgent(context.Background(), daemon.AgentOptions{
		Config: filepath.Join(dir, "ballast.yaml"), Instance: "test", RunDir: filepath.Join(dir, "run"),
		XDPMode: datapath.XDPAuto, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
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

type agentHost struct {
	t              *testing.T
	client, server *netspace.Space
	dir            string
	output         bytes.Buffer
	process        *exec.Cmd
}

func newAgentHost(t *testing.T) *agentHost {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &agentHost{t: t, dir: t.TempDir()}
	for i, space := range []**netspace.Space{&h.client, &h.server} {
		made, err := netspace.Create(fmt.Sprintf("ballast-agt-%d-d%d", os.Getpid(), i))
		require(t, err)
		t.Cleanup(func() {
			made.Close()
			require(t, netspace.Remove(made.Name))
		})
		*space = made
	}
	end := func(space *netspace.Space, address string) netspace.End {
		return netspace.End{Space: space, Interface: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	require(t, netspace.Connect(end(h.client, "10.9.0.1/24"), end(h.server, "10.9.0.2/24")))
	vip := netip.MustParsePrefix("198.51.100.10/32")
	require(t, h.server.AddAddress("lo", vip))
	require(t, h.client.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
	// Mounted here, so that the test can take it away.
	require(t, datapath.EnsureBPFFS(filepath.Join(h.dir, "run", "bpf")))
	t.Cleanup(func() {
		h.kill()
		require(t, daemon.DetachAgent(filepath.Join(h.dir, "run"), "test"))
		if t.Failed() {
			t.Log(h.output.String())
		}
	})
	return h
}

func (h *agentHost) start() {
	h.t.Helper()
	h.process = exec.Command("/proc/self/exe")
	h.process.Env = append(os.Environ(), "BALLAST_TEST_AGENT="+h.dir)
	h.process.Stderr = &h.output
	require(h.t, h.server.Start(h.process))
}

// kill leaves the agent no time for anything.
func (h *agentHost) kill() {
	if h.process != nil {
		h.process.Process.Kill()
		h.process.Wait()
		h.process = nil
	}
}

// write replaces the file as an editor does, and returns the sum that a daemon reports for it.
func (h *agentHost) write(content string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, "ballast.yaml")
	require(h.t, os.WriteFile(path+".new", []byte(content), 0o600))
	require(h.t, os.Rename(path+".new", path))
	return config.Sum([]byte(content))
}

func (h *agentHost) await(what string, done func(api.AgentStatus) bool) (status api.AgentStatus) {
	h.t.Helper()
	client := api.NewClient(api.SocketPath(filepath.Join(h.dir, "run"), "test"))
	for end := time.Now().Add(agentDeadline); ; time.Sleep(5 * time.Millisecond) {
		err := client.Get(h.t.Context(), api.PathStatus, &status)
		if err == nil && done(status) {
			return status
		}
		if time.Now().After(end) {
			h.t.Fatalf("waited for %s: %+v, %v", what, status, err)
		}
	}
}

func (h *agentHost) counters() map[string]uint64 {
	h.t.Helper()
	counters, err := api.NewClient(api.SocketPath(filepath.Join(h.dir, "run"), "test")).Counters(h.t.Context())
	require(h.t, err)
	return counters
}

// echo serves until the test ends and returns one connection to it.
func (h *agentHost) echo() net.Conn {
	h.t.Helper()
	var listener net.Listener
	require(h.t, h.server.Do(func() (err error) { listener, err = net.Listen("tcp", "198.51.100.10:80"); return err }))
	h.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); io.Copy(conn, conn) }()
		}
	}()
	var conn net.Conn
	require(h.t, h.client.Do(func() (err error) { conn, err = net.DialTimeout("tcp", "198.51.100.10:80", agentDeadline); return err }))
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

func exchange(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(agentDeadline))
	for i := range uint32(200) {
		var back uint32
		require(t, errors.Join(binary.Write(conn, binary.BigEndian, i), binary.Read(conn, binary.BigEndian, &back)))
		if back != i {
			t.Fatalf("sent %d, got %d", i, back)
		}
	}
}

func TestAgentServesReloadsAndSurvivesItsOwnDeath(t *testing.T) {
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

func TestAgentRefusesAHostWithoutTimestamps(t *testing.T) {
	h := newAgentHost(t)
	require(t, h.server.Sysctl("net/ipv4/tcp_timestamps", "0"))
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	if err := h.process.Wait(); err == nil {
		t.Error("the agent ended without an error")
	}
	h.process = nil
	if !strings.Contains(h.output.String(), "sysctl -w net.ipv4.tcp_timestamps=1") {
		t.Errorf("no remedy in %q", h.output.String())
	}
}

func TestAgentSaysThatTheServiceAddressIsMissing(t *testing.T) {
	h := newAgentHost(t)
	h.write(strings.ReplaceAll(fmt.Sprintf(agentFile, 1), "198.51.100.10", "198.51.100.99"))
	h.start()
	h.await("the complaint", func(s api.AgentStatus) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0], "ip address add 198.51.100.99/32 dev lo")
	})
}

func require(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
