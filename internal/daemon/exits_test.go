package daemon_test

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// second connects another device of the host, 10.8.0.1, with the peer, 10.8.0.2.
func (h *host) second() {
	h.t.Helper()
	end := func(space *netspace.Space, address string) netspace.End {
		return netspace.End{Space: space, Interface: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	require(h.t, netspace.Connect(end(h.space, "10.8.0.1/24"), end(h.peer, "10.8.0.2/24")))
}

func (h *host) onPeerDevice(device string, do func(*net.Interface) error) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() error {
		found, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		return do(found)
	}))
}

func attachPass(device *net.Interface) error {
	_, err := link.AttachPass(device)
	return err
}

// A native program's redirect to a device that does not accept frames loses them without a trace: plain traffic and health checks pass.
func TestALoadBalancerIsNotReadyWhileADeviceThatNextHopsLeaveByDropsItsFrames(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.second()
	h.with(", {name: s3, address: 10.8.0.2, id: 3}")
	h.start()
	refused := func(s api.LBStatus) bool {
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, "\n"), "ballast pass --interface eth1")
	}
	h.await("the refusal", refused)
	h.onPeerDevice("eth1", attachPass)
	h.await("the peer's program", func(s api.LBStatus) bool { return s.Ready })
	h.onPeerDevice("eth1", link.DetachPass)
	h.await("the refusal again", refused)
	require(t, h.onDeviceNamed("eth1", netlink.LinkDel))
	h.await("readiness without the device", func(s api.LBStatus) bool { return s.Ready })
}

// What a load balancer with one device forwards leaves by XDP_TX, and checks that the kernel sends pass.
func TestALoadBalancerIsNotReadyWhileThePeerOfItsOnlyDeviceDropsItsFrames(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("the load balancer", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	h.expectTunnelled()
	refused := func(s api.LBStatus) bool { return !s.Ready && says(s.NotReady, "ballast pass --interface eth0") }
	h.onPeer(link.DetachPass)
	h.await("the refusal", refused)
	gro := func(on bool) {
		require(t, h.peer.Do(func() error {
			tool, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer tool.Close()
			return tool.Change("eth0", map[string]bool{"rx-gro": on})
		}))
	}
	gro(true) // with it alone frames wait for the next ordinary packet
	h.await("the refusal with GRO", refused)
	gro(false)
	h.onPeer(attachPass)
	h.await("the peer's program", func(s api.LBStatus) bool { return s.Ready })
	h.expectTunnelled()
}

// checkedOnTwoDevices starts the load balancer with servers s1 and s2 behind eth0 and s3 behind eth1. The peer accepts all checks.
func (h *lbHost) checkedOnTwoDevices(forward string) {
	h.t.Helper()
	h.second()
	require(h.t, h.peer.AddAddress("lo", netip.MustParsePrefix("198.51.100.10/32")))
	require(h.t, h.peer.Do(func() error {
		listener, err := net.Listen("tcp", ":8080")
		if err == nil {
			h.t.Cleanup(func() { listener.Close() })
		}
		return err
	}))
	sum := h.write(strings.Replace(fmt.Sprintf(lbFile, ", {name: s3, address: 10.8.0.2, id: 3}"), "ports: [80],",
		"ports: [80], forward: "+forward+", health: {check: tcp, port: 8080, interval: 200ms, timeout: 100ms, rise: 1, fall: 2},", 1))
	h.start()
	h.awaitFile(sum)
}

// What the kernel sends arrives by either device.
//
// Promise: When a device drops the frames that are redirected to it, checks of the servers behind it fail, or the
// load balancer is not ready and withdraws their VIPs.
// Also held by TestALoadBalancerIsNotReadyWhileADeviceThatNextHopsLeaveByDropsItsFrames,
// TestALoadBalancerIsNotReadyWhileThePeerOfItsOnlyDeviceDropsItsFrames,
// TestVIPsWhosePacketsLeaveByADeviceThatDropsThemAreWithdrawn,
// TestADeviceThatFramesOnlyLeaveByKeepsThePassProgramOverARestart and TestFleetsWorkByTwoDevices.
func TestAServerBehindADeviceThatDropsRedirectedFramesIsUnhealthy(t *testing.T) {
	t.Parallel()
	noRaces(t)
	for _, test := range []struct {
		name, forward string
		route         bool // to the VIP
	}{
		{"checks of the VIP", "l2", true}, {"checks of the server's own address", "ipip", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newLBHost(t)
			if test.route {
				require(t, h.space.Route(netip.MustParsePrefix("198.51.100.10/32"), 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
			}
			h.checkedOnTwoDevices(test.forward)
			h.awaitHealths("without the peer's program", "s1 healthy", "s2 healthy", "s3 unhealthy ballast pass --interface eth1")
			h.await("readiness, as nothing is sent to s3", func(s api.LBStatus) bool {
				return s.Ready && strings.Contains(strings.Join(s.Problems, "\n"), "ballast pass --interface eth1")
			})
			if found := h.doctorOnExits(doctor.RoleLB); len(found) != 1 || found[0].Severity != doctor.Problem || !strings.Contains(found[0].Remedy, "ballast pass --interface eth1") {
				t.Errorf("doctor finds %+v", found)
			}
			h.onPeerDevice("eth1", attachPass)
			h.awaitHealths("with it", "s1 healthy", "s2 healthy", "s3 healthy")
			h.await("no problem", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
			if found := h.doctorOnExits(doctor.RoleLB); len(found) != 1 || found[0].Severity != doctor.OK {
				t.Errorf("doctor finds %+v with it", found)
			}
			h.onPeerDevice("eth1", link.DetachPass)
			h.awaitHealths("without it again", "s1 healthy", "s2 healthy", "s3 unhealthy ballast pass --interface eth1")
			h.onPeerDevice("eth1", attachPass)
			h.onPeerDevice("eth0", link.DetachPass)
			h.awaitHealths("without that of the peer that clients' packets come in by", "s1 unhealthy ballast pass --interface eth0", "s2 unhealthy ballast pass --interface eth0", "s3 healthy")
		})
	}
}

// Clients' packets leave by socket buffers there, as those of checks.
func TestInGenericModeServersAreHealthyBehindAnyDevice(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.role = "generic-lb"
	h.checkedOnTwoDevices("ipip")
	h.awaitHealths("in generic mode", "s1 healthy", "s2 healthy", "s3 healthy")
	h.await("no problem", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 && s.Interfaces["eth0"] == "generic" })
}

// doctorOnExits is what doctor finds of devices that servers, or on a server others, are reached by.
func (h *host) doctorOnExits(role doctor.Role) (found []doctor.Finding) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		found = doctor.Examine(h.t.Context(), doctor.Options{Role: role, Instance: "test", RunDir: h.runDir(), StateDir: filepath.Join(h.dir, "state")})
		return nil
	}))
	return slices.DeleteFunc(found, func(f doctor.Finding) bool { return f.Check != "exit" })
}

// awaitHealths waits until each server is as a line says: its name, its health, and what the reason contains.
func (h *lbHost) awaitHealths(when string, want ...string) {
	h.t.Helper()
	var have []string
	defer func() {
		if h.t.Failed() {
			h.t.Logf("%s: %q", when, have)
		}
	}()
	h.eventually(fmt.Sprintf("%s: %q", when, want), func() bool {
		list, err := h.client.Fleet().ListServers(h.t.Context(), &ballastv1.ListServersRequest{})
		require(h.t, err)
		have = nil
		for _, server := range list.Servers {
			have = append(have, strings.TrimSpace(strings.Join([]string{server.Server.Name, server.Health, server.HealthDetail}, " ")))
		}
		return len(have) == len(want) && !slices.ContainsFunc(want, func(line string) bool {
			words := strings.SplitN(line, " ", 3)
			return !slices.ContainsFunc(have, func(is string) bool {
				return strings.HasPrefix(is, words[0]+" "+words[1]) && (len(words) < 3 || strings.Contains(is, words[2]))
			})
		})
	})
}
