package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/features"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// healthyFacts are those of a load balancer or server that nothing is wrong with.
func healthyFacts(role Role) *facts {
	fleet := model.Fleet{Services: []model.Service{{
		Name: "web", VIP: netip.MustParseAddr("198.51.100.10"), Ports: []uint16{80, 443}, Protocol: model.ProtocolTCP,
		Dispatch: model.DispatchRR, Affinity: model.AffinityCookie, Fallback: model.FallbackSecondChance, Forward: model.ForwardIPIP, CookieBits: 14,
		Servers: []model.Server{{Name: "s1", Address: netip.MustParseAddr("10.0.0.1"), ID: 1, Weight: 1}},
	}, {
		Name: "behind", VIP: netip.MustParseAddr("198.51.100.12"), Ports: []uint16{80}, Protocol: model.ProtocolTCP,
		Affinity: model.AffinityCookie, Forward: model.ForwardNAT, Return: model.ReturnThrough, CookieBits: 8,
		Servers: []model.Server{{Name: "s1", Address: netip.MustParseAddr("10.0.0.1"), ID: 1, Weight: 1}},
	}}}
	server, vip := netip.MustParseAddr("10.0.0.1"), fleet.Services[0].VIP
	return &facts{Instance: "default",
		Role:   role,
		Kernel: kernelFacts{Release: "6.12.117", JIT: 1, Synchronised: true, Features: []features.Feature{{Name: "XDP programs", Since: "4.8"}}},
		File:   fileFacts{Path: "ballast.yaml", SHA256: "abcdefgh", Fleet: fleet},
		Devices: []deviceFacts{{
			Device: netdev.Device{Name: "eth0", Index: 2, Kind: "device", Driver: "mlx5_core", Up: true, MTU: 1600, ReceiveQueues: 8, XDPFeaturesKnown: true,
				XDPFeatures: netdev.XDPBasic | netdev.XDPRedirect | netdev.XDPTransmit | netdev.XDPBuffers, Offloads: map[string]bool{},
				Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
			ARPIgnore: 1, ARPAnnounce: 2, Forwarding4: 1, Forwarding6: 1,
		}},
		Paths:  map[netip.Addr]pathFacts{server: {MTU: 1600, Asked: true}},
		Clocks: map[netip.AddrPort]clockFacts{netip.AddrPortFrom(server, 80): {One: true}},
		Daemon: daemonFacts{SocketThere: true, Role: role, Ready: true, Pinned: true, SHA256: "abcdefgh", Path: "ballast.yaml",
			Tunnels: api.Tunnels{Limited: true, From: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Source: "file"}},
		Host: hostFacts{
			Timestamps: 1, LooseTracking: -1, Addresses: map[netip.Addr]string{server: "eth0", vip: "lo"},
			DefaultRoutes: []netdev.DefaultRoute{{Interface: "eth0"}}, WaysBack: []string{"eth0"},
			Listening: map[model.Protocol][]netip.AddrPort{
				model.ProtocolTCP: {netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("[::]:443")}},
		},
		Mine: func(s *model.Server) bool { return role == RoleAgent && s.Address == server },
	}
}

func findings(f *facts) (out []Finding) {
	for _, judge := range judges {
		out = append(out, judge(f)...)
	}
	return out
}

func TestHealthyHostsHaveNoFindings(t *testing.T) {
	for _, role := range []Role{RoleLB, RoleAgent} {
		for _, f := range findings(healthyFacts(role)) {
			if f.Severity != OK || f.Remedy != "" {
				t.Errorf("%s: %+v", role, f)
			}
		}
	}
}

// exitOf is a device with these features that servers are reached by.
func exitOf(features netdev.XDPFeatures) exitFacts {
	return exitFacts{Name: "eth1", Target: netdev.Target{Features: features, FeaturesKnown: true}}
}

func TestExitsThatTakeRedirectedFramesOrNeedNotAreFine(t *testing.T) {
	for name, test := range map[string]struct {
		exit  exitFacts
		more  func(*facts)
		found int // findings that are ok
	}{
		"it transmits":                     {exitOf(netdev.XDPBasic | netdev.XDPTransmit), func(*facts) {}, 1},
		"a program, of an old kernel":      {exitFacts{Name: "eth1", Program: true}, func(*facts) {}, 1},
		"before the start":                 {exitOf(netdev.XDPBasic), func(f *facts) { f.Daemon = daemonFacts{} }, 1},
		"packets come in there alone":      {exitFacts{Name: "eth0"}, func(*facts) {}, 0},
		"they come in in generic mode":     {exitOf(0), func(f *facts) { f.Devices[0].XDPProgram, f.Devices[0].XDPGeneric = 7, true }, 0},
		"they come in without native mode": {exitOf(0), func(f *facts) { f.Devices[0].XDPFeatures = 0 }, 0},
	} {
		f := healthyFacts(RoleLB)
		f.Exits = []exitFacts{test.exit}
		test.more(f)
		found := judgeExits(f)
		if len(found) != test.found || len(found) == 1 && found[0].Severity != OK {
			t.Errorf("%s: %+v", name, found)
		}
	}
	before := healthyFacts(RoleLB)
	before.Exits, before.Daemon = []exitFacts{exitOf(0)}, daemonFacts{}
	if found := judgeExits(before); len(found) != 1 || found[0].Severity != Problem {
		t.Errorf("a driver without native programs, before the start: %+v", found)
	}
}

// One changed fact gives one finding, with a remedy.
func TestOneFaultIsOneFinding(t *testing.T) {
	server, vip := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("198.51.100.10")
	for _, test := range []struct {
		name     string
		role     Role
		breakIt  func(*facts)
		check    string
		severity Severity
		remedy   string
	}{
		{"no helper", RoleAgent, func(f *facts) {
			f.Kernel.Features = append(f.Kernel.Features, features.Feature{Name: "bpf_xdp_get_buff_len", Since: "5.18", Err: errors.New("not supported")})
		}, "kernel features", Problem, "Linux 5.18"},
		{"no tc", RoleLB, func(f *facts) {
			f.Kernel.Features = append(f.Kernel.Features, features.Feature{Name: "health checks", Since: "5.18", Err: errors.New("not supported"), Without: "straight"})
		}, "kernel features", Warning, "Linux 5.18"},
		{"filtered tunnels", RoleLB, func(f *facts) {
			cause := filtered.Cause{Protocol: "IP protocol 4", Balancers: []string{"lb1"}, Servers: []string{"s1", "s2"}, Addresses: []netip.Addr{server}}
			f.Daemon.Filtered, f.Daemon.Problems = []filtered.Cause{cause}, []string{cause.Problem()}
		}, "tunnels", Problem, "let it pass from"},
		{"no BTF", RoleLB, func(f *facts) {
			f.Kernel.Features = []features.Feature{{Name: "BTF of the kernel", Since: "5.2", Err: errors.New("not found")}}
		}, "kernel features", Problem, "CONFIG_DEBUG_INFO_BTF"},
		{"verifier", RoleLB, func(f *facts) { f.Kernel.Load = errors.New("permission denied") }, "programs", Problem, "lockdown"},
		{"rejected", RoleLB, func(f *facts) {
			f.Kernel.Load, f.Kernel.Rejected = errors.New("invalid argument"), []string{"R1 !read_ok"}
		}, "programs", Problem, "verifier rejects"},
		{"no bpffs", RoleLB, func(f *facts) { f.Kernel.BPFFS = errors.New("operation not permitted") }, "bpffs", Problem, "mount -t bpf"},
		{"nohz_full", RoleLB, func(f *facts) { f.Kernel.Grace = errors.New("invalid argument") }, "membarrier", Problem, "nohz_full"},
		{"no JIT", RoleAgent, func(f *facts) { f.Kernel.JIT = 0 }, "BPF JIT", Warning, "bpf_jit_enable=1"},
		{"clock", RoleLB, func(f *facts) { f.Kernel.Synchronised = false }, "clock", Warning, "chrony"},
		{"all draining", RoleLB, func(f *facts) { f.File.Fleet.Services[0].Servers[0].State = model.StateDraining }, "servers", Problem, "state: active"},
		{"no servers", RoleLB, func(f *facts) { f.File.Fleet.Services[0].Servers = nil }, "servers", Problem, "ballast ctl server add"},
		{"ids short", RoleLB, func(f *facts) {
			for i := range 100 {
				f.File.Fleet.Services[1].Servers = append(f.File.Fleet.Services[1].Servers, model.Server{Name: fmt.Sprint(i), Address: server, Weight: 1})
			}
		}, "server ids", Warning, "cookie_bits"},
		{"file refused", RoleLB, func(f *facts) { f.File.Err = errors.Join(errors.New("a.yaml:3: x")) }, "file", Problem, "correct"},
		{"no file", RoleLB, func(f *facts) { f.File = fileFacts{} }, "file", Warning, "-f"},

		{"exit without transmission", RoleLB, func(f *facts) { f.Exits = []exitFacts{exitOf(netdev.XDPBasic)} }, "exit", Problem, "--xdp-mode generic"},
		{"exit without a program, of an old kernel", RoleLB, func(f *facts) { f.Exits = []exitFacts{{Name: "eth1"}} }, "exit", Warning, "--xdp-mode generic"},
		{"exit that is a veth", RoleLB, func(f *facts) {
			f.Exits = []exitFacts{exitOf(netdev.XDPBasic)}
			f.Exits[0].Target.Veth, f.Exits[0].Target.Peer.Name = true, "far"
		}, "exit", Problem, "ballast pass --interface far"},
		{"exit that is a veth whose peer is hidden", RoleLB, func(f *facts) {
			f.Exits = []exitFacts{{Name: "eth1", Target: netdev.Target{Veth: true}}}
		}, "exit", Warning, "ballast pass --interface PEER"},
		{"exit of an agent without transmission", RoleAgent, func(f *facts) { f.Exits = []exitFacts{exitOf(netdev.XDPBasic)} }, "exit", Problem, "start the agent with --xdp-mode generic"},
		{"exit that is a veth that answers leave by", RoleAgent, func(f *facts) {
			f.Daemon.Interfaces = map[string]string{"eth1": string(attach.XDPNone)}
			f.Devices = append(f.Devices, deviceFacts{Device: netdev.Device{Name: "eth1", Up: true, MTU: 1600}})
			f.Exits = []exitFacts{exitOf(netdev.XDPBasic)}
			f.Exits[0].Target.Veth, f.Exits[0].Target.Peer.Name = true, "far"
		}, "exit", Problem, "ballast pass --interface far"},
		{"down", RoleLB, func(f *facts) { f.Devices[0].Up = false }, "interface", Problem, "ip link set eth0 up"},
		{"no interface", RoleLB, func(f *facts) { f.Devices, f.NoDevs = nil, errors.New("no default route") }, "interface", Problem, "--interface"},
		{"VLAN", RoleLB, func(f *facts) { f.Devices[0].Kind, f.Devices[0].Parent = "vlan", "eth9" }, "interface", Warning, "--interface eth9"},
		{"bond port", RoleLB, func(f *facts) { f.Devices[0].Master, f.Devices[0].MasterKind = "bond0", "bond" }, "interface", Problem, "--interface bond0"},
		{"bridge", RoleAgent, func(f *facts) { f.Devices[0].Kind = "bridge" }, "interface", Warning, "port"},
		{"foreign program", RoleLB, func(f *facts) { f.Devices[0].XDPProgram, f.Devices[0].Program = 7, "cil_xdp_entry" }, "xdp", Problem, "xdp off"},
		{"other instance", RoleLB, func(f *facts) { f.Devices[0].XDPProgram, f.Devices[0].Program = 7, "lb" }, "xdp", Problem, "--detach"},
		{"generic though native", RoleLB, func(f *facts) {
			f.Devices[0].XDPProgram, f.Devices[0].Ours, f.Devices[0].XDPGeneric = 7, true, true
		}, "xdp", Warning, "--xdp-mode native"},
		{"no native", RoleLB, func(f *facts) { f.Devices[0].XDPFeatures = 0 }, "native xdp", Warning, "generic"},
		{"jumbo", RoleLB, func(f *facts) { f.Devices[0].MTU, f.Devices[0].XDPFeatures = 9000, netdev.XDPBasic }, "native xdp", Warning, "mtu 3498"},
		{"jumbo on vmxnet3", RoleAgent, func(f *facts) {
			f.Devices[0].Driver, f.Devices[0].MTU, f.Devices[0].Emulated = "vmxnet3", 9000, true
		}, "native xdp", Warning, "mtu 3050"},
		{"LRO before start", RoleLB, func(f *facts) { f.Devices[0].Offloads["rx-lro"] = true }, "offloads", Warning, "ethtool -K eth0 lro off"},
		{"LRO of a part of a bond", RoleLB, func(f *facts) {
			f.Devices[0].Kind, f.Devices[0].XDPProgram, f.Devices[0].Ours = "bond", 7, true
			f.Devices[0].Parts = []netdev.Part{{Name: "eth1"}, {Name: "eth2", Offloads: map[string]bool{"rx-lro": true}}}
		}, "offloads", Problem, "ethtool -K eth2 lro off"},
		{"GRO in hardware", RoleLB, func(f *facts) {
			f.Devices[0].Offloads["rx-gro-hw"], f.Devices[0].XDPProgram, f.Devices[0].Ours = true, 7, true
		}, "offloads", Problem, "rx-gro-hw off"},
		{"veth peer", RoleLB, func(f *facts) { f.Devices[0].Kind, f.Devices[0].XDPFeatures = "veth", netdev.XDPBasic }, "veth", Problem, "ballast pass --interface PEER"},
		{"veth peer with GRO alone", RoleLB, func(f *facts) { f.Devices[0].Kind, f.Devices[0].Peer = "veth", netdev.Peer{Name: "veth7", Known: true} }, "veth", Problem, "ballast pass --interface veth7"},
		{"veth peer that cannot be seen", RoleLB, func(f *facts) { f.Devices[0].Kind = "veth" }, "veth", Warning, "ballast pass --interface PEER"},
		{"veth checksums", RoleAgent, func(f *facts) {
			f.Devices[0].Kind, f.Devices[0].Offloads["tx-checksum-ip-generic"] = "veth", true
		}, "veth", Warning, "tx off"},

		{"neighbour", RoleLB, func(f *facts) {
			f.File.Fleet.Services = f.File.Fleet.Services[:1]
			f.Paths[server] = pathFacts{Err: fmt.Errorf("x: %w", netdev.ErrUnresolved)}
		}, "path", Problem, "start the server"},
		{"no room for a neighbour", RoleLB, func(f *facts) {
			f.File.Fleet.Services = f.File.Fleet.Services[:1]
			f.Paths[server] = pathFacts{Err: &netdev.Unresolved{Neighbour: server, Full: true}}
		}, "path", Problem, "sysctl -w net.ipv4.neigh.default.gc_thresh3"},
		{"no route", RoleLB, func(f *facts) {
			f.File.Fleet.Services = f.File.Fleet.Services[:1]
			f.Paths[server] = pathFacts{Err: errors.New("network is unreachable")}
		}, "path", Problem, "ip route add 10.0.0.1"},
		{"drained", RoleAgent, func(f *facts) {
			s := &f.File.Fleet.Services[0]
			s.Servers = append(s.Servers, model.Server{Name: "s2", Address: netip.MustParseAddr("10.0.0.9"), ID: 2, Weight: 1})
			s.Servers[0].State = model.StateDraining
		}, "drained", Warning, "server undrain web s1"},
		{"removed, and its name is another's", RoleAgent, func(f *facts) {
			s := &f.File.Fleet.Services[0]
			removed := s.Servers[0]
			removed.State, s.Servers[0].Address, s.Servers[0].ID = model.StateDraining, netip.MustParseAddr("10.0.0.9"), 2
			s.Servers, f.Daemon.Left = append(s.Servers, removed), []string{"web"}
		}, "drained", Warning, "server add web 10.0.0.1"},
		{"gone after a drain", RoleLB, func(f *facts) {
			s := &f.File.Fleet.Services[0]
			s.Servers = append(s.Servers, model.Server{Name: "s2", Address: vip, ID: 2, Weight: 1, State: model.StateDraining})
			f.Paths[vip] = pathFacts{Err: netdev.ErrUnresolved}
		}, "path", Warning, "remove the server"},
		{"silent", RoleLB, func(f *facts) {
			f.File.Fleet.Services = f.File.Fleet.Services[:1]
			f.Paths[server] = pathFacts{MTU: 1600, Silent: true}
		}, "reachability", Warning, "firewall"},
		{"MTU 1500", RoleLB, func(f *facts) { f.Paths[server] = pathFacts{MTU: 1500} }, "mtu", Warning, "MTU to 1544, or on the server: ip route change default via ROUTER advmss 1416"},
		{"MTU far too small", RoleLB, func(f *facts) {
			f.File.Fleet.Services = f.File.Fleet.Services[:1]
			f.Paths[server] = pathFacts{MTU: 1300}
		}, "mtu", Problem, "1544"},
		{"per-connection clocks", RoleLB, func(f *facts) { f.Clocks[netip.AddrPortFrom(server, 80)] = clockFacts{} }, "timestamps", Warning, "tcp_timestamps=2"},
		{"no timestamps", RoleLB, func(f *facts) {
			f.Clocks[netip.AddrPortFrom(server, 80)] = clockFacts{Err: netdev.ErrNoTimestamp}
		}, "timestamps", Problem, "tcp_timestamps=2"},
		{"no forwarding", RoleLB, func(f *facts) { f.Devices[0].Forwarding4 = 0 }, "forwarding", Problem, "ip_forward=1"},
		{"strict on the way back", RoleLB, func(f *facts) { f.Devices[0].ReversePath = 1 }, "rp_filter", Warning, "eth0.rp_filter=0"},

		{"not in the file", RoleAgent, func(f *facts) { f.Mine = func(*model.Server) bool { return false } }, "identity", Problem, "--server"},
		{"through only", RoleAgent, func(f *facts) { f.File.Fleet.Services = f.File.Fleet.Services[1:] }, "identity", Warning, "stop the agent"},
		{"VIP missing", RoleAgent, func(f *facts) { delete(f.Host.Addresses, vip) }, "vip", Problem, "ip address add 198.51.100.10/32 dev lo"},
		{"timestamps off", RoleAgent, func(f *facts) { f.Host.Timestamps = 0 }, "timestamps", Problem, "tcp_timestamps=1"},
		{"no MPTCP", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].MPTCP, f.Host.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 1024}, []string{"it is off: switch it on"}
		}, "mptcp", Problem, "switch it on"},
		{"an MPTCP that plain handshakes fill", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].MPTCP, f.Host.MPTCPPlain = model.MPTCP{FirstPort: 40000, Ports: 1024}, true
		}, "mptcp", Warning, "6.12"},
		{"no hand-over", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].Session, f.Host.TakesOver = model.SessionTLS, errors.New("the kernel cannot: use another")
		}, "sessions", Problem, "use another"},
		{"strict tracking", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].Session, f.Host.LooseTracking = model.SessionTLS, 0
		}, "sessions", Warning, "tcp_loose=1"},
		{"translation and no table", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].Session, f.Host.Translated = model.SessionTLS, "chain c of table others"
		}, "sessions", Warning, "--keep-tracking"},
		{"a server's clock", RoleAgent, func(f *facts) {
			f.File.Fleet.Services[0].Session, f.Kernel.Synchronised = model.SessionTLS, false
		}, "clock", Warning, "chrony"},
		{"hand-over to MPTCP", RoleAgent, func(f *facts) {
			s := &f.File.Fleet.Services[0]
			s.Session, f.Host.Listeners = model.SessionTLS, []mptcp.Listener{{At: netip.AddrPortFrom(netip.IPv6Unspecified(), s.Ports[0]), Multipath: true}}
		}, "sessions", Problem, "multipathtcp=0"},
		{"microseconds", RoleAgent, func(f *facts) { f.Host.Microsecond = []string{"route x has it: change it"} }, "timestamps", Problem, "change it"},
		{"strict, one way", RoleAgent, func(f *facts) { f.Devices[0].ReversePath = 1 }, "rp_filter", Warning, "rp_filter=0"},
		{"strict, other way", RoleAgent, func(f *facts) { f.Devices[0].ReversePath = 1; f.Host.WaysBack = []string{"eth1"} }, "rp_filter", Problem, "rp_filter=0"},
		{"strict, no way", RoleAgent, func(f *facts) { f.Devices[0].ReversePath = 1; f.Host.WaysBack = nil }, "rp_filter", Problem, "rp_filter=0"},
		{"ARP on the segment", RoleAgent, func(f *facts) { f.File.Fleet.Services[0].Forward, f.Devices[0].ARPIgnore = model.ForwardL2, 0 }, "arp", Problem, "arp_ignore=1"},
		{"announces", RoleAgent, func(f *facts) { f.File.Fleet.Services[0].Forward, f.Devices[0].ARPAnnounce = model.ForwardL2, 0 }, "arp", Problem, "arp_announce=2"},
		{"VIP on the segment", RoleAgent, func(f *facts) { f.File.Fleet.Services[0].Forward = model.ForwardL2; f.Host.Addresses[vip] = "eth0" }, "arp", Problem, "dev lo"},
		{"VIP of the subnet", RoleAgent, func(f *facts) {
			f.Devices[0].Prefixes = append(f.Devices[0].Prefixes, netip.MustParsePrefix("198.51.100.1/24"))
			f.Devices[0].ARPIgnore = 0
		}, "arp", Problem, "arp_ignore=1"},
		{"server MTU", RoleAgent, func(f *facts) { f.Devices[0].MTU = 1500 }, "mtu", Warning, "advmss 1416"},
		{"nothing listens", RoleAgent, func(f *facts) { f.Host.Listening = nil; f.File.Fleet.Services[0].Ports = []uint16{80} }, "listener", Problem, "start the application"},
		{"nothing listens on several ports", RoleAgent, func(f *facts) { f.Host.Listening = nil; f.File.Fleet.Services[0].Ports = []uint16{80, 81, 90} }, "listener", Problem, "start the application"},

		{"not running", RoleLB, func(f *facts) { f.Daemon = daemonFacts{} }, "daemon", Warning, "ballast lb -f"},
		{"stopped", RoleLB, func(f *facts) { f.Daemon = daemonFacts{Pinned: true} }, "daemon", Problem, "start it again, as it was started before (systemctl start ballast-lb): it takes"},
		{"killed", RoleAgent, func(f *facts) { f.Daemon = daemonFacts{SocketThere: true, Dead: true, Pinned: true} }, "daemon", Problem, "ballast-agent): it takes"},
		{"killed, with what it pinned", RoleAgent, func(f *facts) { f.Daemon = daemonFacts{SocketThere: true, Dead: true} }, "daemon", Problem, "start it again"},
		{"not started after a reboot", RoleLB, func(f *facts) {
			f.Daemon, f.Kept.States = daemonFacts{}, []statefile.Kept{{Role: "lb", Path: "state.json"}}
		}, "daemon", Problem, "start it again"},
		{"started in vain", RoleLB, func(f *facts) {
			f.Daemon, f.Units = daemonFacts{}, []unitFacts{{Role: RoleLB, Instance: f.Instance, Fails: true, Restarts: 7, Last: "ballast: find interface eth9"}}
		}, "unit", Problem, "journalctl -u ballast-lb"},
		{"unknown role", RoleUnknown, func(f *facts) { f.Daemon, f.File = daemonFacts{}, fileFacts{} }, "role", Warning, "--role lb or --role agent, or -f FILE"},
		{"another instance runs", RoleUnknown, func(f *facts) {
			f.Daemon, f.File, f.Kept.Instances = daemonFacts{}, fileFacts{}, []string{"lb1"}
		}, "role", Warning, "--instance with one that is here: lb1"},
		{"hung, with a data path", RoleLB, func(f *facts) { f.Daemon.Err, f.Daemon.Pinned = errors.New("timeout"), true }, "daemon", Problem, "log"},
		{"hung", RoleLB, func(f *facts) { f.Daemon.Err = errors.New("timeout") }, "daemon", Problem, "log"},
		{"other role", RoleLB, func(f *facts) { f.Daemon.Role = RoleAgent }, "daemon", Problem, "--instance"},
		{"other file", RoleLB, func(f *facts) { f.Daemon.SHA256 = "other" }, "daemon", Problem, "reload"},
		{"refused file", RoleLB, func(f *facts) { f.Daemon.Refused = "a.yaml:3: x" }, "daemon", Problem, "correct"},
		{"refused, under another name", RoleAgent, func(f *facts) { f.Instance, f.Daemon.Refused = "s1", "`config reload --force`" }, "daemon", Problem, "if it is right, ballast ctl --instance s1 config reload --force"},
		{"refused for its connections", RoleAgent, func(f *facts) { f.Daemon.Refused = "keys: if the file is right: `ballast ctl config reload --force`" }, "daemon", Problem, "if it is right, ballast ctl config reload --force"},
		{"refused as half a file", RoleLB, func(f *facts) { f.Daemon.Refused = "`config reload --force --allow-remove`" }, "daemon", Problem, "if it is right, ballast ctl config reload --force --allow-remove"},
		{"a gateway that is dead", RoleAgent, func(f *facts) {
			f.Daemon.Gateways = []api.Gateway{{Address: netip.MustParseAddr("10.0.0.1"), Answers: true}, {Address: netip.MustParseAddr("10.0.0.2")}}
		}, "gateway", Warning, "UDP port 3784"},
		{"gateways that are dead", RoleAgent, func(f *facts) { f.Daemon.Gateways = []api.Gateway{{Address: netip.MustParseAddr("10.0.0.2")}} }, "gateway", Problem, "UDP port 3784"},
		{"tunnels of strangers", RoleAgent, func(f *facts) { f.Daemon.Tunnels = api.Tunnels{Open: "name them"} }, "tunnels", Warning, "name them; or keep"},
		{"its problems", RoleAgent, func(f *facts) { f.Daemon.Problems = []string{"VIP is away: add it"} }, "daemon", Problem, "do what it says"},
		{"no way back", RoleAgent, func(f *facts) { f.Host.Back = map[bool]error{false: errors.New("no route to host")} }, "way back", Problem, "ip route add default"},
		{"a way back to some", RoleAgent, func(f *facts) {
			f.Host.Back, f.Host.Egress = map[bool]error{false: errors.New("no route to host")}, []string{"eth0"}
			f.Daemon.Interfaces = map[string]string{"eth0": "native"}
		}, "way back", Warning, "ip route add default"},
		{"dead router", RoleAgent, func(f *facts) {
			f.Host.Back = map[bool]error{false: &netdev.Unresolved{Neighbour: netip.MustParseAddr("10.0.0.1")}}
		}, "way back", Problem, "ip route replace default"},
		{"not attached to a way out", RoleAgent, func(f *facts) {
			f.Host.Egress, f.Daemon.Interfaces = []string{"eth0", "eth9"}, map[string]string{"eth0": "native"}
		}, "way out", Problem, "agent's log"},
		{"a way out that the agent tells of", RoleAgent, func(f *facts) {
			f.Host.Egress, f.Daemon.Problems = []string{"eth9"}, []string{"answers that leave by eth9 are not marked: x"}
		}, "daemon", Problem, "do what it says"},
		{"a way out without Ethernet", RoleAgent, func(f *facts) { f.Host.EgressBare = []string{"wg0"} }, "way out", Warning, "ip route get"},
		{"private mounts", RoleLB, func(f *facts) { f.Kernel.PrivatePins = "nothing can be taken over: nsenter" }, "bpffs", Warning, "nsenter"},
		{"a daemon with private mounts", RoleLB, func(f *facts) {
			f.Devices[0].XDPProgram, f.Devices[0].Program = 7, "lb"
			f.Daemon.Interfaces, f.Daemon.Pinned = map[string]string{"eth0": "native"}, false
		}, "bpffs", Warning, "start the daemon again in the host's mount namespace"},
		{"another instance", RoleLB, func(f *facts) { f.Devices[0].XDPProgram, f.Devices[0].Program, f.Devices[0].Instance = 7, "lb", "b" }, "xdp", Problem, "--instance b"},
		{"keys that others can read", RoleLB, func(f *facts) {
			f.File.Exposed = "ballast.yaml: others can read the keys (mode 0644): chmod 600 ballast.yaml"
		}, "file", Warning, "chmod 600 ballast.yaml"},
		{"a file beside controllers", RoleLB, func(f *facts) { f.Daemon.ByControllers, f.File.Running, f.File.SHA256 = true, true, "" }, "file", Warning, "leave out -f"},
		{"not ready", RoleLB, func(f *facts) {
			f.Daemon.Ready, f.Daemon.NotReady, f.Daemon.Problems = false, []string{"x: y: z"}, []string{"x: y: z"}
		}, "daemon", Problem, "do what it says"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := healthyFacts(test.role)
			test.breakIt(f)
			var bad []Finding
			for _, f := range findings(f) {
				if f.Severity != OK {
					bad = append(bad, f)
				}
			}
			if len(bad) != 1 || bad[0].Check != test.check || bad[0].Severity != test.severity || !strings.Contains(strings.ToLower(bad[0].Remedy), strings.ToLower(test.remedy)) {
				t.Errorf("have %+v; want one %s of %s with remedy %q", bad, test.severity, test.check, test.remedy)
			}
		})
	}
}

// The flag of a bond merges nothing: those of its parts do.
func TestABondsOwnOffloadsAreNoFault(t *testing.T) {
	f := healthyFacts(RoleLB)
	f.Devices[0].Kind, f.Devices[0].XDPProgram, f.Devices[0].Ours, f.Devices[0].Offloads["rx-lro"] = "bond", 7, true, true
	f.Devices[0].Parts = []netdev.Part{{Name: "eth1"}}
	for _, f := range findings(f) {
		if f.Severity != OK {
			t.Errorf("%+v", f)
		}
	}
}

// Without root the file cannot be read: that says nothing about it, and it must not be moved away.
func TestAStateThatMayNotBeReadIsNotSaidToBeDamaged(t *testing.T) {
	f := healthyFacts(RoleLB)
	f.Daemon, f.File = daemonFacts{Pinned: true}, fileFacts{}
	f.Kept.States = []statefile.Kept{{Role: "lb", Path: "/var/lib/ballast/default/state.json", Err: &fs.PathError{Op: "open", Err: fs.ErrPermission}}}
	for _, found := range findings(f) {
		if found.Check == "state" && found.Remedy != "run doctor as root" {
			t.Errorf("%+v", found)
		}
	}
}

// A daemon that died and cannot start again: both are said, and neither remedy takes anything away from clients.
func TestAStateThatNoDaemonCanUseIsNamed(t *testing.T) {
	f := healthyFacts(RoleLB)
	f.Daemon, f.File = daemonFacts{Pinned: true}, fileFacts{}
	f.Kept.States = []statefile.Kept{{Role: "lb", Path: "/var/lib/ballast/default/state.json", Err: errors.New("unexpected end of JSON input")}}
	var bad []string
	for _, found := range findings(f) {
		if found.Severity != OK {
			bad = append(bad, found.Check+" "+found.Subject+" "+found.Severity.String())
		}
		if strings.Contains(found.Remedy, "--detach") || strings.Contains(found.Remedy, "-f FILE") {
			t.Errorf("%+v", found)
		}
	}
	if want := []string{"state /var/lib/ballast/default/state.json problem", "daemon lb problem"}; !slices.Equal(bad, want) {
		t.Errorf("have %q, want %q", bad, want)
	}
}

// An agent of controllers that have told it nothing says so itself: what is wrong is not a name or an address.
func TestAnAgentThatWasToldNothingHasNoWrongIdentity(t *testing.T) {
	f := healthyFacts(RoleAgent)
	f.File = fileFacts{Running: true}
	f.Daemon.ByControllers, f.Daemon.Ready, f.Daemon.Path = true, false, ""
	f.Daemon.NotReady = []string{"no controller has sent yet what this host serves, and no state was kept"}
	f.Daemon.Problems = f.Daemon.NotReady
	for _, found := range findings(f) {
		if found.Severity == Problem && found.Check != "daemon" || found.Check == "state" {
			t.Errorf("%+v", found)
		}
	}
}

// Strict filtering drops packets where they come in, not where their answers leave.
func TestReversePathsAreThoseOfTheDevicesThatPacketsComeInBy(t *testing.T) {
	f := healthyFacts(RoleAgent)
	f.Devices = append(f.Devices, f.Devices[0])
	f.Devices[0].ReversePath, f.Devices[1].ReversePath, f.Devices[1].Name = 1, 1, "eth1"
	f.Host.WaysBack = []string{"eth0", "eth1"}
	f.Daemon.Interfaces = map[string]string{"eth0": "native", "eth1": string(attach.XDPNone)}
	found := judgeReversePath(f)
	if len(found) != 1 || found[0].Subject != "eth0" || found[0].Severity != Problem || !strings.Contains(found[0].Found, "lead back by eth1:") {
		t.Errorf("%+v", found)
	}
}

func TestDevicesThatAnswersOnlyLeaveByNeedNoXDP(t *testing.T) {
	f := healthyFacts(RoleAgent)
	f.Devices[0].XDPProgram, f.Devices[0].Program, f.Devices[0].XDPFeatures = 7, "cil_xdp_entry", 0
	f.Daemon.Role, f.Daemon.Interfaces = RoleAgent, map[string]string{"eth0": string(attach.XDPNone)}
	for _, found := range judgeDevices(f) {
		if found.Severity != OK {
			t.Errorf("%+v", found)
		}
	}
}

func TestOverheadIsThatOfTheDataPath(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, test := range []struct {
		s      model.Service
		server netip.Addr
		want   int
	}{
		{model.Service{Forward: model.ForwardL2}, v4, 0},
		{model.Service{Forward: model.ForwardNAT, Return: model.ReturnThrough}, v4, 0},
		{model.Service{Forward: model.ForwardIPIP}, v4, 20},
		{model.Service{Forward: model.ForwardIPIP}, v6, 40},
		{model.Service{Forward: model.ForwardGUE}, v4, 32},
		{model.Service{Forward: model.ForwardGUE}, v6, 52},
		{model.Service{Forward: model.ForwardIPIP, Fallback: model.FallbackSecondChance}, v4, 44},
		{model.Service{Forward: model.ForwardIPIP, Fallback: model.FallbackSecondChance}, v6, 88},
	} {
		if have := plan.Overhead(&test.s, test.server); have != test.want {
			t.Errorf("%s, %s, to %s: %d, want %d", test.s.Forward, test.s.Fallback, test.server, have, test.want)
		}
	}
}

func TestSeveritiesKeepTheirNames(t *testing.T) {
	for _, s := range []Severity{OK, Warning, Problem} {
		text, _ := s.MarshalText()
		var back Severity
		if err := back.UnmarshalText(text); err != nil || back != s {
			t.Errorf("%s: %v, %v", text, back, err)
		}
	}
}

// The verifier's words are told to who asks for them.
func TestTheVerifiersLogIsOffered(t *testing.T) {
	f := healthyFacts(RoleLB)
	f.Kernel.Load, f.Kernel.Rejected = errors.New("load lb: permission denied"), []string{"0: (79) r0 = *(u64 *)(r2 +0)", "R2 !read_ok"}
	if found := judgePrograms(f)[0].Found; found != "load lb: permission denied" {
		t.Errorf("found %q", found)
	}
	f.Verbose = true
	if found := judgePrograms(f)[0].Found; !strings.HasSuffix(found, "\n0: (79) r0 = *(u64 *)(r2 +0)\nR2 !read_ok") {
		t.Errorf("found %q", found)
	}
}

// What a kernel can do counts, not what it is called: distributions bring features to old ones.
func TestOldKernelsWithTheFeaturesAreFine(t *testing.T) {
	f := healthyFacts(RoleLB)
	f.Kernel.Release = "5.14.0-503.el9"
	for _, finding := range findings(f) {
		if finding.Severity != OK {
			t.Errorf("%+v", finding)
		}
	}
}
