package daemon_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// kubeProxy is what its mode nftables makes of a service with an endpoint on this node.
const kubeProxy = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 198.51.100.10 . tcp . 80 : goto external-web }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain external-web { goto endpoint-web; }
	chain endpoint-web { meta l4proto tcp dnat to 10.7.0.2:8080; }
}
`

func (h *host) nft(rules string) {
	h.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		h.t.Skip("needs nftables:", err)
	}
	require(h.t, h.space.Do(func() error {
		command := exec.Command("nft", "-f", "-")
		command.Stdin = strings.NewReader(rules)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}))
}

// newNode is an agent's host that has the VIP on no device, as a node of Kubernetes, and the namespace of a pod.
func newNode(t *testing.T) (h *agentHost, pod *netspace.Space) {
	t.Helper()
	h = newAgentHost(t)
	vip, err := netlink.ParseAddr("198.51.100.10/32")
	require(t, err)
	require(t, h.onDeviceNamed("lo", func(lo netlink.Link) error { return netlink.AddrDel(lo, vip) }))
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	require(t, h.space.Route(everywhere, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
	require(t, h.space.Sysctl("net/ipv4/ip_forward", "1"))
	pod = newSpace(t, "pod")
	require(t, netspace.Connect(netspace.End{Space: h.space, Interface: "eth5", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/24")}},
		netspace.End{Space: pod, Interface: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.2/24")}}))
	require(t, pod.Route(everywhere, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.7.0.1"), Interface: "eth0"}))
	return h, pod
}

// listen accepts connections in a pod until the test ends.
func (h *agentHost) listen(pod *netspace.Space) {
	h.t.Helper()
	var listener net.Listener
	require(h.t, pod.Do(func() (err error) { listener, err = net.Listen("tcp", ":8080"); return err }))
	h.t.Cleanup(func() { listener.Close() })
	go h.echoes(listener)
}

func probed(s api.AgentStatus, state api.ProbeState) bool {
	return len(s.Probes) == 1 && s.Probes[0].At.String() == "198.51.100.10:80" && s.Probes[0].State == state
}

// Promise: Where kube-proxy's IPVS has a VIP on its device, what counts is what becomes of packets, too: no socket of the host has to listen.
//
// A rule stands for IPVS here; the tests of Kubernetes have the real one.
func TestAgentLooksForNoSocketWhereIPVSHasTheVIP(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h, pod := newNode(t)
	h.listen(pod)
	require(t, h.space.AddBridge("kube-ipvs0", 1500, netip.MustParsePrefix("198.51.100.10/32")))
	h.nft(kubeProxy)
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("packets to be taken", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 && probed(s, api.ProbeTaken) })
}

// What counts is what becomes of packets: an agent is ready where a rule takes them to an application, and not where they are lost.
func TestAgentOfANodeIsReadyWherePacketsAreTaken(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h, pod := newNode(t)
	h.listen(pod)
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the complaint without any translation", func(s api.AgentStatus) bool {
		return !s.Ready && probed(s, api.ProbeLost) && len(s.NotReady) == 1 && strings.Contains(s.NotReady[0], "ip address add 198.51.100.10/32 dev lo")
	})
	h.nft(kubeProxy)
	h.await("translation to be seen", func(s api.AgentStatus) bool {
		return s.Ready && len(s.Problems) == 0 && probed(s, api.ProbeTaken) && s.Probes[0].Age != nil
	})
	before := h.counters()
	exchange(t, h.dial())
	if after := h.counters(); after["egress_marked_translated"] == before["egress_marked_translated"] {
		t.Error("a client's connection carries no cookie")
	}
	h.nft("flush chain ip kube-proxy services\n")
	h.await("the loss of the rule", func(s api.AgentStatus) bool {
		return !s.Ready && probed(s, api.ProbeLost) && says(s.NotReady, "SYNs to its tcp port 80 are lost here: this host sends them back to the network")
	})
	h.nft("add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips\n")
	h.await("the rule again", func(s api.AgentStatus) bool { return s.Ready && probed(s, api.ProbeTaken) })
	h.nft("table inet f {\nchain c {\ntype filter hook forward priority 0\ntcp dport 8080 drop\n}\n}\n")
	h.await("a firewall", func(s api.AgentStatus) bool {
		return !s.Ready && says(s.NotReady, "SYNs to its tcp port 80 are lost here: nothing answers")
	})
	h.nft("delete table inet f\n")
	h.await("no firewall", func(s api.AgentStatus) bool { return s.Ready })
	require(t, h.onDeviceNamed("eth5", netlink.LinkSetDown))
	h.await("the pod to be gone", func(s api.AgentStatus) bool { return !s.Ready && probed(s, api.ProbeLost) })
}

// Promise: The same of UDP, where an application need not answer: what this host passes on past all rules counts, what is sent back is lost, and the agent is not ready then; what
// nobody has seen is a problem that keeps it from nothing.
func TestAgentOfANodeIsReadyWhereDatagramsArePassedOn(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h, pod := newNode(t)
	var socket net.PacketConn
	require(t, pod.Do(func() (err error) { socket, err = net.ListenPacket("udp", ":8080"); return err }))
	t.Cleanup(func() { socket.Close() })
	h.write(strings.Replace(fmt.Sprintf(agentFile, 1), "ports: [80],", "ports: [80], protocol: udp, affinity: hash,", 1))
	h.nft(strings.ReplaceAll(kubeProxy, "tcp", "udp"))
	h.start()
	h.await("datagrams to be passed on", func(s api.AgentStatus) bool {
		return s.Ready && len(s.Problems) == 0 && probed(s, api.ProbePassed) && s.Probes[0].Protocol == "udp"
	})
	h.nft("table inet f {\nchain c {\ntype filter hook forward priority 0\nudp dport 8080 drop\n}\n}\n")
	h.await("a firewall", func(s api.AgentStatus) bool {
		return s.Ready && probed(s, api.ProbeUnknown) && says(s.Problems, "whether packets to its udp port 80 are taken here is not known: nothing answers datagrams")
	})
	h.nft("delete table inet f\n")
	h.await("no firewall", func(s api.AgentStatus) bool { return s.Ready && probed(s, api.ProbePassed) })
	h.nft("flush chain ip kube-proxy services\n")
	h.await("the loss of the rule", func(s api.AgentStatus) bool {
		return !s.Ready && probed(s, api.ProbeLost) && says(s.NotReady, "datagrams to its udp port 80 are lost here: this host sends them back to the network")
	})
	h.nft("add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips\n")
	h.await("the rule again", func(s api.AgentStatus) bool { return s.Ready && probed(s, api.ProbePassed) })
	require(t, socket.Close())
	h.await("no socket", func(s api.AgentStatus) bool { return probed(s, api.ProbeRefused) })
}

// Where no client can be probed as, it is not known whether packets are taken: the agent is not ready, and says why.
func TestAgentOfANodeThatCannotProbeIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h, pod := newNode(t)
	h.listen(pod)
	h.nft(kubeProxy)
	h.write(strings.Replace(fmt.Sprintf(agentFile, 1), "ports: [80],", "ports: [80], allow: [10.7.0.0/24],", 1))
	h.start()
	h.await("what cannot be known", func(s api.AgentStatus) bool {
		return !s.Ready && probed(s, api.ProbeUnknown) && says(s.NotReady, "whether packets to its tcp port 80 are taken here is not known: answers to 10.7.0.")
	})
	h.write(strings.Replace(fmt.Sprintf(agentFile, 1), "ports: [80],", "ports: [80], allow: [10.7.0.0/24, 203.0.113.0/24],", 1))
	h.await("an allowed client", func(s api.AgentStatus) bool {
		return s.Ready && probed(s, api.ProbeTaken) && s.Probes[0].Client == netip.MustParseAddr("203.0.113.1")
	})
}
