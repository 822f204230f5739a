package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const fleet = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  cookie: {1: 00112233445566778899aabbccddeeff}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], mptcp: {first_port: 40000}, servers: [{name: s1, address: 10.99.0.2, id: 1}]}
  - {name: flat, vip: 198.51.100.11, ports: [80], forward: l2, servers: [{name: s1, address: 10.99.0.2, id: 1}]}
  - {name: nat, vip: 198.51.100.12, ports: [80], return: through, servers: [{name: s1, address: 10.99.0.2, id: 1}]}
`

// site is a load balancer and a server of ours, joined by a link.
type site struct {
	lb, server *netspace.Space
	listener   net.Listener // the application
	config     string
	runDir     string
	asleep     bool // the load balancer's peer has no program
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	s := &site{config: filepath.Join(t.TempDir(), "ballast.yaml"), runDir: t.TempDir()}
	s.writeConfig(t, fleet)
	for name, space := range map[string]**netspace.Space{"lb": &s.lb, "server": &s.server} {
		full := fmt.Sprintf("ballast-doc-%d-%s", os.Getpid(), name)
		t.Cleanup(func() {
			if err := netspace.Remove(full); err != nil {
				t.Error(err)
			}
		})
		var err error
		*space, err = netspace.Create(full)
		must(t, err)
	}
	end := func(space *netspace.Space, address string) netspace.End {
		return netspace.End{Space: space, Interface: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}, MTU: 1600}
	}
	must(t, netspace.Connect(end(s.lb, "10.99.0.1/24"), end(s.server, "10.99.0.2/24")))
	for _, space := range []*netspace.Space{s.lb, s.server} {
		for key, value := range map[string]string{
			"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.eth0.rp_filter": "0", "net.ipv4.ip_forward": "1",
			"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2", "net.ipv4.tcp_timestamps": "2",
		} {
			must(t, space.Sysctl(key, value))
		}
		setOffload(t, space, "rx-gro", true)
	}
	anywhere := netip.MustParsePrefix("0.0.0.0/0")
	must(t, s.server.Route(anywhere, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.99.0.1"), Interface: "eth0"}))
	for _, vip := range []string{"198.51.100.10/32", "198.51.100.11/32"} {
		must(t, s.server.AddAddress("lo", netip.MustParsePrefix(vip)))
	}
	s.listen(t)
	t.Cleanup(func() { s.listener.Close() })
	return s
}

func (s *site) writeConfig(t *testing.T, content string) {
	t.Helper()
	must(t, os.WriteFile(s.config, []byte(content), 0o600))
}

// listen opens the application's socket.
func (s *site) listen(t *testing.T) {
	t.Helper()
	must(t, s.server.Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		s.listener, err = config.Listen(t.Context(), "tcp4", "0.0.0.0:80")
		return err
	}))
}

func (s *site) examine(t *testing.T, role doctor.Role) (findings []doctor.Finding) {
	t.Helper()
	space := s.lb
	if role == doctor.RoleAgent {
		space = s.server
	} else if !s.asleep {
		onPeer := func(do func(*net.Interface) error) {
			must(t, s.server.Do(func() error {
				device, err := net.InterfaceByName("eth0")
				if err != nil {
					return err
				}
				return do(device)
			}))
		}
		onPeer(func(device *net.Interface) error { _, err := link.AttachPass(device); return err })
		defer onPeer(link.DetachPass)
	}
	must(t, space.Do(func() error {
		findings = doctor.Examine(context.Background(), doctor.Options{
			Config: s.config, Role: role, Interfaces: []string{"eth0"}, Instance: "default", RunDir: s.runDir,
		})
		return nil
	}))
	return findings
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setOffload(t *testing.T, space *netspace.Space, name string, on bool) {
	t.Helper()
	must(t, space.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change("eth0", map[string]bool{name: on})
	}))
}

func onLink(t *testing.T, space *netspace.Space, name string, change func(netlink.Link) error) {
	t.Helper()
	must(t, space.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(link)
	}))
}

func setMTU(t *testing.T, space *netspace.Space, mtu int) {
	onLink(t, space, "eth0", func(link netlink.Link) error { return netlink.LinkSetMTU(link, mtu) })
}

// expectSilentDrop sends the server a packet of Ethernet's size and then a short one: the short one alone arrives, and no ICMP comes back.
func (s *site) expectSilentDrop(t *testing.T) {
	t.Helper()
	var receiver, sender *net.UDPConn
	must(t, s.server.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 99, 0, 2), Port: 9})
		return err
	}))
	defer receiver.Close()
	must(t, s.lb.Do(func() (err error) {
		sender, err = net.DialUDP("udp4", nil, receiver.LocalAddr().(*net.UDPAddr))
		return err
	}))
	defer sender.Close()
	raw, err := sender.SyscallConn()
	must(t, err)
	option := func(do func(fd int) error) {
		t.Helper()
		must(t, errors.Join(raw.Control(func(fd uintptr) { err = do(int(fd)) }), err))
	}
	option(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	for _, size := range []int{1500 - 28, 100} {
		_, err := sender.Write(make([]byte, size))
		must(t, err)
	}
	must(t, receiver.SetReadDeadline(time.Now().Add(10*time.Second)))
	if n, err := receiver.Read(make([]byte, 2000)); n != 100 || err != nil {
		t.Errorf("%d bytes arrive first, %v; want the 100 of the short packet", n, err)
	}
	var mtu int
	if option(func(fd int) (err error) { mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU); return err }); mtu != 1600 {
		t.Errorf("the sender takes packets of %d bytes; want 1600, as nobody has said otherwise", mtu)
	}
}

// sysctl returns a pair that breaks and mends one setting.
func sysctl(server bool, key, bad, good string) (breakIt, mend func(*testing.T, *site)) {
	set := func(value string) func(*testing.T, *site) {
		return func(t *testing.T, s *site) {
			space := s.lb
			if server {
				space = s.server
			}
			must(t, space.Sysctl(key, value))
		}
	}
	return set(bad), set(good)
}

func (s *site) defaultRoute(t *testing.T, router string) {
	t.Helper()
	onLink(t, s.server, "eth0", func(l netlink.Link) error {
		_, anywhere, err := net.ParseCIDR("0.0.0.0/0")
		return errors.Join(err, netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: anywhere, Gw: net.ParseIP(router)}))
	})
}

func vip(address string) *netlink.Addr {
	parsed, _ := netlink.ParseAddr(address)
	return parsed
}

type breakage struct {
	name          string
	role          doctor.Role
	breakIt, mend func(*testing.T, *site)
	check         string // of every finding that comes with it
	severity      doctor.Severity
	remedy        string // part of it
}

func breakages() []breakage {
	list := []breakage{
		{"VIP missing", doctor.RoleAgent, func(t *testing.T, s *site) {
			onLink(t, s.server, "lo", func(l netlink.Link) error { return netlink.AddrDel(l, vip("198.51.100.10/32")) })
		}, func(t *testing.T, s *site) {
			onLink(t, s.server, "lo", func(l netlink.Link) error { return netlink.AddrReplace(l, vip("198.51.100.10/32")) })
		}, "vip", doctor.Problem, "ip address add 198.51.100.10/32 dev lo"},
		{"small MTU at the server", doctor.RoleAgent, func(t *testing.T, s *site) { setMTU(t, s.server, 1500) },
			func(t *testing.T, s *site) { setMTU(t, s.server, 1600) }, "mtu", doctor.Warning, "advmss"},
		{"a smaller MTU than load balancers have", doctor.RoleAgent, func(t *testing.T, s *site) {
			setMTU(t, s.server, 1400)
			s.expectSilentDrop(t)
		}, func(t *testing.T, s *site) { setMTU(t, s.server, 1600) }, "mtu", doctor.Warning, "advmss 1316"},
		{"small MTU at the load balancer", doctor.RoleLB, func(t *testing.T, s *site) { setMTU(t, s.lb, 1500) },
			func(t *testing.T, s *site) { setMTU(t, s.lb, 1600) }, "mtu", doctor.Warning, "raise the fabric's MTU to 1544"},
		{"peer of veth with GRO alone", doctor.RoleLB, func(t *testing.T, s *site) { s.asleep = true },
			func(t *testing.T, s *site) { s.asleep = false }, "veth", doctor.Problem, "ballast pass --interface eth0"},
		{"wrong default route", doctor.RoleAgent, func(t *testing.T, s *site) { s.defaultRoute(t, "10.99.0.66") },
			func(t *testing.T, s *site) { s.defaultRoute(t, "10.99.0.1") }, "way back", doctor.Problem, "ip route replace default"},
		{"answers by another device, and strict", doctor.RoleAgent, func(t *testing.T, s *site) {
			must(t, s.server.Sysctl("net.ipv4.conf.eth0.rp_filter", "1"))
			s.run(t, doctor.RoleAgent, "", "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1p")
			s.run(t, doctor.RoleAgent, "", "ip", "link", "set", "eth1", "up")
			s.run(t, doctor.RoleAgent, "", "ip", "route", "add", "203.0.113.0/24", "via", "10.98.0.1", "dev", "eth1", "onlink")
		}, func(t *testing.T, s *site) {
			must(t, s.server.Sysctl("net.ipv4.conf.eth0.rp_filter", "0"))
			s.run(t, doctor.RoleAgent, "", "ip", "link", "del", "eth1")
		}, "rp_filter", doctor.Problem, "net.ipv4.conf.eth0.rp_filter=0"},
		{"way out without Ethernet", doctor.RoleAgent, func(t *testing.T, s *site) {
			if _, err := os.Stat("/dev/net/tun"); err != nil {
				t.Skip("needs tun devices:", err)
			}
			s.run(t, doctor.RoleAgent, "", "ip", "tuntap", "add", "dev", "tun9", "mode", "tun")
			s.run(t, doctor.RoleAgent, "", "ip", "link", "set", "tun9", "up")
			s.run(t, doctor.RoleAgent, "", "ip", "route", "add", "default", "dev", "tun9", "table", "77")
		}, func(t *testing.T, s *site) { s.run(t, doctor.RoleAgent, "", "ip", "link", "del", "tun9") }, "way out", doctor.Warning, "ip route get"},
		{"checksums left to hardware", doctor.RoleLB, func(t *testing.T, s *site) { setOffload(t, s.lb, "tx-checksum-ip-generic", true) },
			func(t *testing.T, s *site) { setOffload(t, s.lb, "tx-checksum-ip-generic", false) }, "veth", doctor.Warning, "ethtool -K eth0 tx off"},
		{"nothing listens", doctor.RoleAgent, func(t *testing.T, s *site) { s.listener.Close() },
			func(t *testing.T, s *site) { s.listen(t) }, "listener", doctor.Problem, "start the application"},
		{"another program", doctor.RoleLB, func(t *testing.T, s *site) {
			wire, err := link.Load()
			must(t, err)
			defer wire.Close()
			must(t, s.lb.AttachXDP("eth0", wire.PassFD()))
		}, func(t *testing.T, s *site) {
			onLink(t, s.lb, "eth0", func(l netlink.Link) error { return netlink.LinkSetXdpFd(l, -1) })
		}, "xdp", doctor.Problem, "ip link set dev eth0 xdp off"},
		{"bad file", doctor.RoleLB, func(t *testing.T, s *site) { s.writeConfig(t, fleet+"surprise: 1\n") },
			func(t *testing.T, s *site) { s.writeConfig(t, fleet) }, "file", doctor.Problem, "correct the file"},
	}
	for _, b := range []struct {
		role                  doctor.Role
		server                bool
		key, bad, good, check string
		severity              doctor.Severity
		remedy                string
	}{
		{doctor.RoleAgent, true, "net.ipv4.conf.eth0.rp_filter", "1", "0", "rp_filter", doctor.Warning, "net.ipv4.conf.eth0.rp_filter=0"},
		{doctor.RoleAgent, true, "net.ipv4.tcp_timestamps", "0", "2", "timestamps", doctor.Problem, "tcp_timestamps=1"},
		{doctor.RoleAgent, true, "net.mptcp.enabled", "0", "1", "mptcp", doctor.Problem, "net.mptcp.enabled=1"},
		{doctor.RoleAgent, true, "net.ipv4.conf.all.arp_ignore", "0", "1", "arp", doctor.Problem, "net.ipv4.conf.eth0.arp_ignore=1"},
		{doctor.RoleAgent, true, "net.ipv4.conf.all.arp_announce", "0", "2", "arp", doctor.Problem, "net.ipv4.conf.eth0.arp_announce=2"},
		{doctor.RoleLB, true, "net.ipv4.tcp_timestamps", "1", "2", "timestamps", doctor.Warning, "tcp_timestamps=2"},
		{doctor.RoleLB, true, "net.ipv4.tcp_timestamps", "0", "2", "timestamps", doctor.Problem, "tcp_timestamps=2"},
		{doctor.RoleLB, false, "net.ipv4.ip_forward", "0", "1", "forwarding", doctor.Problem, "ip_forward=1"},
		{doctor.RoleLB, false, "net.ipv4.conf.eth0.rp_filter", "1", "0", "rp_filter", doctor.Warning, "net.ipv4.conf.eth0.rp_filter=0"},
	} {
		breakIt, mend := sysctl(b.server, b.key, b.bad, b.good)
		list = append(list, breakage{fmt.Sprintf("%s=%s for %s", b.key, b.bad, b.role), b.role, breakIt, mend, b.check, b.severity, b.remedy})
	}
	return list
}

// Whatever one setting breaks is found, with its remedy, and nothing else is.
func TestEachBrokenSettingIsFoundAlone(t *testing.T) {
	s := newSite(t)
	healthy := map[doctor.Role]map[string]bool{}
	for _, role := range []doctor.Role{doctor.RoleLB, doctor.RoleAgent} {
		healthy[role] = map[string]bool{}
		for _, f := range s.examine(t, role) {
			healthy[role][line(f)] = true
			// A clock that nobody sets and a daemon that does not run are the machine's and the test's.
			if f.Severity != doctor.OK && f.Check != "clock" && f.Check != "daemon" {
				t.Errorf("healthy %s: %s", role, line(f))
			}
		}
	}
	for _, b := range breakages() {
		t.Run(b.name, func(t *testing.T) {
			b.breakIt(t, s)
			broken := s.examine(t, b.role)
			b.mend(t, s)
			found := false
			for _, f := range broken {
				switch {
				case f.Severity == doctor.OK || healthy[b.role][line(f)]:
				case f.Check != b.check || f.Severity != b.severity || !strings.Contains(f.Remedy, b.remedy):
					t.Errorf("unexpected: %s", line(f))
				default:
					found = true
				}
			}
			if !found {
				t.Errorf("not found; want a %s of check %s with remedy %q; have:", b.severity, b.check, b.remedy)
				for _, f := range broken {
					t.Log(line(f))
				}
			}
		})
	}
}

// The program of a load balancer that runs is not taken for somebody else's.
func TestOwnProgramIsRecognised(t *testing.T) {
	s := newSite(t)
	root := filepath.Join(s.runDir, "bpf")
	must(t, pin.EnsureBPFFS(root))
	t.Cleanup(func() { must(t, pin.RemoveBPFFS(root)) })
	pins := filepath.Join(root, "default")
	t.Cleanup(func() { must(t, attach.Detach(pins)) })
	must(t, s.lb.Do(func() error {
		lb, err := lb.Open(pins, plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
		if err != nil {
			return err
		}
		defer lb.Close()
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		_, err = lb.Attach(device, attach.XDPAuto)
		return err
	}))
	for _, f := range s.examine(t, doctor.RoleLB) {
		if f.Check == "xdp" && f.Severity != doctor.OK {
			t.Errorf("the program: %s", line(f))
		}
		if f.Check == "daemon" && !strings.Contains(f.Remedy, "start it again") {
			t.Errorf("the links that a daemon left: %s", line(f))
		}
	}
}

// What a daemon in a mount namespace of its own has attached is its own, though its pins are not seen.
//
// Promise: A daemon in its own mount namespace logs that its data path ends with it, and `doctor` names it.
// Also held by TestPinsOfAPrivateMountNamespaceAreSaidToEndWithIt.
func TestADaemonInAPrivateMountNamespaceIsNamed(t *testing.T) {
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("needs it:", err)
	}
	s := newSite(t)
	executable, err := os.Executable()
	must(t, err)
	ballast := filepath.Join(t.TempDir(), "ballast")
	must(t, os.Symlink(executable, ballast))
	daemon := exec.Command("unshare", "--mount", ballast, "lb", "-f", s.config, "--interface", "eth0", "--run-dir", s.runDir, "--state-dir", t.TempDir())
	must(t, s.lb.Do(daemon.Start))
	t.Cleanup(func() {
		must(t, daemon.Process.Signal(os.Interrupt))
		must(t, daemon.Wait())
	})
	client := api.NewClient(api.SocketPath(s.runDir, "default"))
	var status api.LBStatus
	await.True(t, "the daemon is attached", func() bool {
		return client.Get(t.Context(), api.PathStatus, &status) == nil && len(status.Interfaces) > 0
	})
	have := map[string]string{}
	for _, f := range s.examine(t, doctor.RoleLB) {
		have[f.Check] = line(f)
	}
	for check, want := range map[string]string{"xdp": "ok xdp eth0: our program is attached", "bpffs": "warning bpffs : the daemon runs in a mount namespace of its own"} {
		if !strings.HasPrefix(have[check], want) {
			t.Errorf("%q, want %q", have[check], want)
		}
	}
}

// A server that is off is told from one that cannot be routed to.
func TestUnreachableServersAreFound(t *testing.T) {
	s := newSite(t)
	s.writeConfig(t, strings.Replace(fleet, "198.51.100.11, ports: [80], forward: l2, servers: [{name: s1, address: 10.99.0.2",
		"198.51.100.11, ports: [80], forward: l2, servers: [{name: s1, address: 10.99.0.77", 1))
	wanted := map[string]string{"flat/s1": "start the server"}
	for _, f := range s.examine(t, doctor.RoleLB) {
		if f.Check == "path" && f.Severity == doctor.Problem {
			if !strings.Contains(f.Remedy, wanted[f.Subject]) || wanted[f.Subject] == "" {
				t.Errorf("unexpected: %s", line(f))
			}
			delete(wanted, f.Subject)
		}
	}
	if len(wanted) > 0 {
		t.Errorf("not found: %v", wanted)
	}
}

func line(f doctor.Finding) string {
	return fmt.Sprintf("%s %s %s: %s -> %s", f.Severity, f.Check, f.Subject, f.Found, f.Remedy)
}
