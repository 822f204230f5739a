package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
)

// What a file says of mptcp is told to clients until the agent leaves for good.
func TestAnAgentTellsClientsWithMPTCPWhereToJoin(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	with := strings.Replace(agentFile, "ports: [80]", "ports: [80], mptcp: {first_port: 40000, ports: 100}", 1)
	sum := h.write(fmt.Sprintf(with, 1))
	h.start()
	status := h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	if len(status.Joins) != 1 || status.Joins[0].Port() < 40000 || status.Joins[0].Port() > 40099 || len(status.Problems) != 0 {
		t.Fatalf("status %+v", status)
	}
	announced := func(when string, want ...netip.AddrPort) {
		t.Helper()
		require(t, h.space.Do(func() error {
			there, err := mptcp.Endpoints()
			var have []netip.AddrPort
			for _, e := range there {
				have = append(have, e.Address)
			}
			if !slices.Equal(have, want) {
				t.Errorf("%s: clients are told %v, not %v", when, have, want)
			}
			return err
		}))
	}
	announced("at first", status.Joins...)
	first, connection := status.Joins[0], h.join()
	await.True(t, "a subflow joins", func() (joined bool) {
		connection.talk(t)
		require(t, h.space.Do(func() error {
			used, err := mptcp.Used(status.Joins)
			joined = used[first] > 0
			return err
		}))
		return joined
	})
	sum = h.write(fmt.Sprintf(with, 2))
	status = h.await("the next key", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	if len(status.Joins) != 1 || status.Joins[0] == first {
		t.Fatalf("with the next key clients are told %v after %v", status.Joins, first)
	}
	both := []netip.AddrPort{first, status.Joins[0]} // in the order of the kernel's numbers
	announced("with the next key", both...)
	h.kill()
	h.start()
	h.await("the agent again", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	announced("after a restart", both...)
	h.await("the subflow at the first key's port alone", func(s api.AgentStatus) bool {
		connection.talk(t)
		return s.Echoes[1] == 1 && s.Echoes[2] == 1
	})
	require(t, connection.client.Close())
	require(t, connection.server.Close())
	h.await("none", func(s api.AgentStatus) bool { return s.Echoes[1] == 0 })
	sum = h.write(strings.Replace(fmt.Sprintf(with, 2), "1: 00112233445566778899aabbccddeeff, ", "", 1))
	status = h.await("without the first key", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	announced("without the first key", status.Joins...)
	if err := h.remove("test"); err == nil {
		t.Error("detached while the daemon runs")
	}
	announced("while the daemon runs", status.Joins...)
	h.kill()
	announced("without the daemon", status.Joins...)
	require(t, h.remove("test"))
	announced("after it has left")
}

// joined is a connection of the client with a further subflow.
type joined struct{ client, server net.Conn }

// join begins one, which joins where the agent has it announced.
func (h *agentHost) join() (j joined) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() error {
		return exec.Command("ip", "mptcp", "limits", "set", "subflows", "2", "add_addr_accepted", "2").Run()
	}))
	var listener net.Listener
	require(h.t, h.space.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(true)
		listener, err = config.Listen(context.Background(), "tcp4", "198.51.100.10:80")
		return err
	}))
	defer listener.Close()
	require(h.t, h.peer.Do(func() (err error) {
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(true)
		j.client, err = dialer.Dial("tcp4", listener.Addr().String())
		return err
	}))
	h.t.Cleanup(func() { j.client.Close() })
	var err error
	j.server, err = listener.Accept()
	require(h.t, err)
	h.t.Cleanup(func() { j.server.Close() })
	return j
}

// talk has both ends send something.
func (j joined) talk(t *testing.T) {
	t.Helper()
	for _, way := range [][2]net.Conn{{j.client, j.server}, {j.server, j.client}} {
		_, err := way[0].Write([]byte("x"))
		require(t, err)
		_, err = io.ReadFull(way[1], make([]byte, 1))
		require(t, err)
	}
}
