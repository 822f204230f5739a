package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// newNode is a server that has its VIPs on no device, as a node of Kubernetes, and the namespace of a pod.
func newNode(t *testing.T, o rigOptions) (r *rig, pod *netspace.Space) {
	t.Helper()
	r = newRig(t, o)
	for i, gateway := range []string{"10.9.0.1", "fd09::1"} {
		progtest.Check(t, r.server.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			return errors.Join(err, netlink.AddrDel(lo, &netlink.Addr{IPNet: &net.IPNet{IP: r.vips[i].AsSlice(), Mask: net.CIDRMask(r.vips[i].BitLen(), r.vips[i].BitLen())}}))
		}))
		progtest.Check(t, r.server.Route(netip.MustParsePrefix([]string{"0.0.0.0/0", "::/0"}[i]), 0, hop(gateway)))
	}
	pod = progtest.NewSpace(t, "p")
	progtest.Check(t, pod.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	progtest.Connect(t, r.server, "eth5", 1, pod, "eth0", 2, 7, 0)
	progtest.Check(t, r.server.Sysctl("net/ipv4/ip_forward", "1"))
	progtest.Check(t, r.server.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	for i, gateway := range []string{"10.7.0.1", "fd07::1"} {
		progtest.Check(t, pod.Route(netip.MustParsePrefix([]string{"0.0.0.0/0", "::/0"}[i]), 0, hop(gateway)))
	}
	return r, pod
}

// What a kube-proxy makes of a service with a local endpoint, in its modes nftables and iptables; the VIPs and the pod are newNode's.
const (
	kubeProxyNFTables = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 198.51.100.10 . tcp . 80 : goto external-web }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain external-web { goto service-web; }
	chain service-web { numgen random mod 1 vmap { 0 : goto endpoint-web }; }
	chain endpoint-web { meta l4proto tcp dnat to 10.7.0.2:8080; }
}
table ip6 kube-proxy {
	map service-ips {
		type ipv6_addr . inet_proto . inet_service : verdict
		elements = { 2001:db8:51::10 . tcp . 80 : goto endpoint-web }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip6 daddr . meta l4proto . th dport vmap @service-ips; }
	chain endpoint-web { meta l4proto tcp dnat to [fd07::2]:8080; }
}
`
	kubeProxyIPTables = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-EXT-WEB - [0:0]
:KUBE-SVL-WEB - [0:0]
:KUBE-SEP-WEB - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d %s -p tcp -m tcp --dport 80 -j KUBE-EXT-WEB
-A KUBE-EXT-WEB -j KUBE-SVL-WEB
-A KUBE-SVL-WEB -j KUBE-SEP-WEB
-A KUBE-SEP-WEB -p tcp -m tcp -j DNAT --to-destination %s
COMMIT
`
)

// iptables loads rules of kube-proxy's mode iptables by one variant of the tool, without saying which it is to the kernel.
func (r *rig) iptables(variant string) {
	r.t.Helper()
	for i, to := range []string{"10.7.0.2:8080", "[fd07::2]:8080"} {
		command := exec.Command([]string{"iptables", "ip6tables"}[i] + "-" + variant + "-restore")
		if command.Err != nil {
			r.t.Skip("needs iptables:", command.Err)
		}
		command.Stdin = bytes.NewBufferString(fmt.Sprintf(kubeProxyIPTables, r.vips[i], to))
		progtest.Check(r.t, r.server.Do(func() error {
			out, err := command.CombinedOutput()
			if err != nil && bytes.Contains(out, []byte("Table does not exist")) {
				r.t.Skipf("this kernel has no iptables-%s: %s", variant, out)
			}
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return nil
		}))
	}
}

// fate waits until this becomes of a probe from an address that the server has only its default route to. Another one may have met an
// address that the kernel was only about to have.
func (r *rig) fate(vip int, want server.Fate) {
	r.t.Helper()
	probe := server.Probe{Client: netip.AddrPortFrom(netip.MustParseAddr([]string{"192.0.2.1", "2001:db8:2::1"}[vip]), 6), Service: netip.AddrPortFrom(r.vips[vip], servicePort), Sequence: 1<<32 - 1}
	have := server.ProbeReturned
	await.Nil(r.t, fmt.Sprintf("fate %d of a probe of %s", want, probe.Service), func() error {
		return r.server.Do(func() (err error) {
			if have != server.ProbeUnanswered {
				probe.Client = netip.AddrPortFrom(probe.Client.Addr(), probe.Client.Port()+1)
				if probe.Device, err = net.InterfaceByName("eth0"); err == nil {
					err = r.agent.SendProbe(&probe)
				}
			}
			if err == nil {
				have, err = r.agent.ProbeFate(&probe)
			}
			if err == nil && have != want {
				err = fmt.Errorf("it is %d", have)
			}
			return err
		})
	})
	progtest.Check(r.t, r.server.Do(func() error { return r.agent.EndProbe(&probe) }))
}

// strays counts the TCP segments of probes that come to the client until the function that it returns is called.
func (r *rig) strays() (count func() int) {
	r.t.Helper()
	var socket int
	progtest.Check(r.t, r.client.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, int(progtest.Htons(unix.ETH_P_ALL)))
		return err
	}))
	r.t.Cleanup(func() { unix.Close(socket) })
	return func() (found int) {
		packet := make([]byte, 2048)
		for {
			n, from, err := unix.Recvfrom(socket, packet, 0)
			if err != nil {
				return found
			}
			link, ours := from.(*unix.SockaddrLinklayer), false
			for _, address := range []string{"192.0.2.1", "2001:db8:2::1"} {
				ours = ours || bytes.Contains(packet[:n], netip.MustParseAddr(address).AsSlice())
			}
			if ours && link.Pkttype != unix.PACKET_OUTGOING && link.Protocol != progtest.Htons(unix.ETH_P_ARP) {
				found++
			}
		}
	}
}

// A probe meets what a client's packet meets, and nothing of it leaves the host.
func TestProbesShowWhetherTheHostTakesAServicesPackets(t *testing.T) {
	type setting struct {
		rules  func(r *rig)
		listen bool
		want   server.Fate
	}
	for name, test := range map[string]setting{
		"kube-proxy, nftables":        {func(r *rig) { r.translate(kubeProxyNFTables) }, true, server.ProbeAnswered},
		"kube-proxy, iptables-nft":    {func(r *rig) { r.iptables("nft") }, true, server.ProbeAnswered},
		"kube-proxy, iptables-legacy": {func(r *rig) { r.iptables("legacy") }, true, server.ProbeAnswered},
		"a pod without a listener":    {func(r *rig) { r.translate(kubeProxyNFTables) }, false, server.ProbeRefused},
		"no rule":                     {func(*rig) {}, true, server.ProbeReturned},
		"a rule that resets": {func(r *rig) {
			r.translate("table inet t {\nchain c {\ntype filter hook forward priority 0\ntcp dport 80 reject with tcp reset\n}\n}\n")
		}, true, server.ProbeRejected},
		"the service's own address": {func(r *rig) {
			for _, vip := range r.vips {
				progtest.Check(r.t, r.server.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
			}
			r.listen(false)
			for _, vip := range r.vips { // the kernel has an address of IPv6 a moment later, and loses what comes before
				await.Nil(r.t, vip.String(), func() error {
					return r.server.Do(func() error {
						connection, err := net.Dial("tcp", netip.AddrPortFrom(vip, servicePort).String())
						if err == nil {
							err = connection.Close()
						}
						return err
					})
				})
			}
		}, true, server.ProbeAnswered},
	} {
		t.Run(name, func(t *testing.T) {
			r, pod := newNode(t, rigOptions{})
			test.rules(r)
			if test.listen {
				r.listenAt(pod, ":8080")
			}
			count := r.strays()
			for vip := range r.vips {
				r.fate(vip, test.want)
			}
			if test.want == server.ProbeAnswered {
				before, w := r.rejects(), r.watch()
				r.browse(6, 1000)
				r.verify(w, before)
				r.awaitNoRequests(pod)
			}
			if n := count(); n != 0 {
				t.Errorf("%d packets of probes left the host", n)
			}
		})
	}
}

// Where nothing answers, a probe is unanswered; where a rule drops it as well.
func TestProbesThatAreLostAreUnanswered(t *testing.T) {
	r, pod := newNode(t, rigOptions{})
	r.translate(kubeProxyNFTables + "table inet f {\nchain c {\ntype filter hook forward priority 0\ntcp dport 8080 drop\n}\n}\n")
	r.listenAt(pod, ":8080")
	for vip := range r.vips {
		r.fate(vip, server.ProbeUnanswered)
	}
}

// A rule of kube-proxy's mode nftables for UDP.
const kubeProxyUDP = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 198.51.100.10 . udp . 80 : goto endpoint-web }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain endpoint-web { meta l4proto udp dnat to %s; }
}
table ip6 kube-proxy {
	map service-ips {
		type ipv6_addr . inet_proto . inet_service : verdict
		elements = { 2001:db8:51::10 . udp . 80 : goto endpoint-web }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip6 daddr . meta l4proto . th dport vmap @service-ips; }
	chain endpoint-web { meta l4proto udp dnat to %s; }
}
`

// Promise: What becomes of an empty datagram shows whether a host takes the UDP packets of a service: an answer, ICMP of whoever it is for, that it leaves again, or where
// connection tracking has it go; nothing of it leaves the host.
func TestDatagramsShowWhetherTheHostTakesAServicesPackets(t *testing.T) {
	const drops = "table inet f {\nchain c {\ntype filter hook forward priority 0\nmeta l4proto udp %s\n}\n}\n"
	toPod, here := []any{"10.7.0.2:8080", "[fd07::2]:8080"}, []any{"10.9.0.2:8080", "[fd09::2]:8080"}
	for name, test := range map[string]struct {
		rules          string
		answers, reads bool // the pod's application
		fate           server.Fate
		passed         bool
	}{
		"an application that answers":    {rules: fmt.Sprintf(kubeProxyUDP, toPod...), answers: true, fate: server.ProbeAnswered, passed: true},
		"one that does not":              {rules: fmt.Sprintf(kubeProxyUDP, toPod...), reads: true, fate: server.ProbeUnanswered, passed: true},
		"a pod without a socket":         {rules: fmt.Sprintf(kubeProxyUDP, toPod...), fate: server.ProbeRefused, passed: true},
		"this host without a socket":     {rules: fmt.Sprintf(kubeProxyUDP, here...), fate: server.ProbeRejected, passed: true},
		"no rule":                        {fate: server.ProbeReturned},
		"a firewall that drops":          {rules: fmt.Sprintf(kubeProxyUDP, toPod...) + fmt.Sprintf(drops, "drop"), reads: true, fate: server.ProbeUnanswered},
		"a firewall that refuses":        {rules: fmt.Sprintf(kubeProxyUDP, toPod...) + fmt.Sprintf(drops, "reject"), reads: true, fate: server.ProbeRejected},
		"a firewall that says otherwise": {rules: fmt.Sprintf(kubeProxyUDP, toPod...) + fmt.Sprintf(drops, "reject with icmpx type admin-prohibited"), reads: true, fate: server.ProbeUnreachable},
		"a pod that is gone":             {rules: fmt.Sprintf(kubeProxyUDP, "10.7.0.77:8080", "[fd07::77]:8080"), fate: server.ProbeUnreachable, passed: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, pod := newNode(t, rigOptions{})
			if test.rules != "" {
				r.translate(test.rules)
			}
			if test.answers || test.reads {
				r.receive(pod, test.answers)
			}
			count := r.strays()
			for vip := range r.vips {
				r.datagram(vip, test.fate, test.passed)
			}
			if n := count(); n != 0 {
				t.Errorf("%d packets of probes left the host", n)
			}
		})
	}
}

// Promise: Probes of UDP cost no client its answers: what is noted of one ends with it, after some seconds also where no agent ends it, and with the next agent.
func TestClientsOfAProbesAddressAreAnswered(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	for vip, address := range []string{"10.9.0.1", "fd09::1"} {
		service := netip.AddrPortFrom(r.vips[vip], servicePort)
		r.receiveAt(r.server, service.String(), true)
		for name, end := range map[string]func(*server.Probe) error{
			"ended":               func(p *server.Probe) error { return r.agent.EndProbe(p) },
			"of an agent killed":  func(*server.Probe) error { return r.agent.AgeNotes(10 * time.Second) },
			"of an agent before":  func(*server.Probe) error { return errors.Join(r.agent.Close(), r.reopen(dir)) },
			"ended, and repeated": func(p *server.Probe) error { return errors.Join(r.agent.EndProbe(p), r.agent.EndProbe(p)) },
		} {
			client := netip.AddrPortFrom(netip.MustParseAddr(address), 500)
			r.asks(client, service)
			probe := server.Probe{Client: client, Service: service, UDP: true}
			progtest.Check(t, r.server.Do(func() (err error) {
				if probe.Device, err = net.InterfaceByName("eth0"); err == nil {
					err = r.agent.SendProbe(&probe)
				}
				return err
			}))
			await.Nil(t, "the answer to a probe of "+service.String(), func() error {
				fate, err := r.agent.ProbeFate(&probe)
				if err == nil && fate != server.ProbeAnswered {
					err = fmt.Errorf("its fate is %d", fate)
				}
				return err
			})
			progtest.Check(t, end(&probe))
			dropped := r.count("egress_dropped_probe")
			r.asks(client, service)
			if n := r.count("egress_dropped_probe") - dropped; n > 0 {
				t.Errorf("%s, %s: %d of a client's answers were dropped", service, name, n)
			}
		}
	}
}

// reopen is an agent's start after another one's end; it has probed.
func (r *rig) reopen(dir string) error {
	r.attach(dir)
	return r.server.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return r.agent.SendProbe(&server.Probe{Device: device, Client: netip.MustParseAddrPort("192.0.2.1:9"), Service: netip.AddrPortFrom(r.vips[0], servicePort), UDP: true})
	})
}

// asks sends datagrams from a port of the client's until one is answered.
func (r *rig) asks(from, to netip.AddrPort) {
	r.t.Helper()
	var socket net.Conn
	progtest.Check(r.t, r.client.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(from)}
		socket, err = dialer.Dial("udp", to.String())
		return err
	}))
	defer socket.Close()
	await.Nil(r.t, fmt.Sprintf("an answer from %s to %s", to, from), func() error {
		_, err := socket.Write([]byte("who?"))
		if err == nil {
			err = socket.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		}
		if err == nil {
			_, err = socket.Read(make([]byte, 16))
		}
		return err
	})
}

// receive takes datagrams at port 8080 of a namespace, and may answer.
func (r *rig) receive(space *netspace.Space, answers bool) {
	r.t.Helper()
	r.receiveAt(space, ":8080", answers)
}

// receiveAt is receive at an address and a port.
func (r *rig) receiveAt(space *netspace.Space, at string, answers bool) {
	r.t.Helper()
	var socket net.PacketConn
	progtest.Check(r.t, space.Do(func() (err error) { socket, err = net.ListenPacket("udp", at); return err }))
	r.t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			_, from, err := socket.ReadFrom(make([]byte, 2048))
			if err != nil {
				return
			}
			if answers {
				_, _ = socket.WriteTo([]byte("here"), from)
			}
		}
	}()
}

// datagram is fate of a probe by UDP. passed: connection tracking has it go on to another address.
func (r *rig) datagram(vip int, want server.Fate, passed bool) {
	r.t.Helper()
	probe := server.Probe{Client: netip.AddrPortFrom(netip.MustParseAddr([]string{"192.0.2.1", "2001:db8:2::1"}[vip]), 6), Service: netip.AddrPortFrom(r.vips[vip], servicePort), UDP: true}
	have := server.ProbeReturned
	await.Nil(r.t, fmt.Sprintf("fate %d of a datagram to %s, passed on %v", want, probe.Service, passed), func() error {
		return r.server.Do(func() (err error) {
			if have != server.ProbeUnanswered || want == have {
				probe.Client = netip.AddrPortFrom(probe.Client.Addr(), probe.Client.Port()+1)
				if probe.Device, err = net.InterfaceByName("eth0"); err == nil {
					err = r.agent.SendProbe(&probe)
				}
			}
			if err == nil {
				have, err = r.agent.ProbeFate(&probe)
			}
			if err != nil || have != want {
				return errors.Join(err, fmt.Errorf("it is %d", have))
			}
			to, err := netdev.TrackedTo(probe.Client, probe.Service)
			if went := to.IsValid() && to != probe.Service; err != nil || went != passed {
				err = errors.Join(err, fmt.Errorf("it went on to %v", to))
			}
			return err
		})
	})
}

// awaitNoRequests waits until a namespace has no handshakes that nobody completes.
func (r *rig) awaitNoRequests(space *netspace.Space) {
	r.t.Helper()
	await.Nil(r.t, "probes to be forgotten", func() error {
		return space.Do(func() error {
			for _, table := range []string{"tcp", "tcp6"} {
				content, err := os.ReadFile("/proc/thread-self/net/" + table)
				if err != nil {
					return err
				}
				if bytes.Contains(content, []byte(" 03 ")) { // SYN_RECV
					return fmt.Errorf("there are handshakes:\n%s", content)
				}
			}
			return nil
		})
	})
}
