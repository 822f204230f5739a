package doctor

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// programNames are those of the roles' XDP programs.
var programNames = map[Role]string{RoleLB: "lb", RoleAgent: "server_xdp"}

func judgeDevices(f *facts) (out []Finding) {
	if f.NoDevs != nil {
		out = append(out, Finding{"interface", "", Problem, f.NoDevs.Error(), "name one that the host has: --interface NAME"})
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		if !d.Up {
			out = append(out, Finding{"interface", d.Name, Problem, "is down", "ip link set " + d.Name + " up"})
		}
		if f.Daemon.Role == f.Role && f.Daemon.Interfaces[d.Name] == string(attach.XDPNone) { // the rest is for XDP
			out = append(out, ok("xdp", d.Name, "not needed: answers only leave by it, and our programs are at tc"))
			continue
		}
		out = append(out, judgeAttachment(f, d), judgeNative(d))
		out = append(out, judgeKind(f.Role, d)...)
		out = append(out, judgeOffloads(f.Role, d)...)
		out = append(out, judgeQueues(f.Role, d)...)
		if d.Kind == "veth" {
			out = append(out, judgeVeth(f.Role, d)...)
		}
	}
	return out
}

func judgeAttachment(f *facts, d *deviceFacts) Finding {
	ours := d.Ours || f.Daemon.hidden() && f.Daemon.Interfaces[d.Name] != "" && d.Program == programNames[f.Role]
	mode := "native"
	if d.XDPGeneric {
		mode = "generic"
	}
	switch {
	case d.XDPProgram == 0:
		return ok("xdp", d.Name, "no program attached yet")
	case ours && d.XDPGeneric && d.native() == nativeYes:
		return Finding{"xdp", d.Name, Warning, "our program is attached in generic mode, though the driver has native XDP",
			"start with --xdp-mode native to see why it was not taken"}
	case ours:
		return ok("xdp", d.Name, "our program is attached, %s", mode)
	case d.Behind && d.OtherRole:
		return ok("xdp", d.Name, "our program runs behind the load balancer's, %s", mode)
	case d.Instance != "" && d.OtherRole && f.Role == RoleAgent:
		return ok("xdp", d.Name, "the program of load balancer %s is attached: ours will run behind it", d.Instance)
	case d.Instance != "" && d.OtherRole:
		return ok("xdp", d.Name, "the program of agent %s is attached: it will run behind ours", d.Instance)
	case d.Instance != "":
		return Finding{"xdp", d.Name, Problem, fmt.Sprintf("program %d of instance %s is attached", d.XDPProgram, d.Instance),
			"use --instance " + d.Instance + ", or remove it with --detach once its daemon has ended"}
	case d.Program == programNames[f.Role]:
		return Finding{"xdp", d.Name, Problem, fmt.Sprintf("program %d of another Ballast instance is attached", d.XDPProgram),
			"use its --instance and --run-dir, or remove it with --detach"}
	}
	return Finding{"xdp", d.Name, Problem, fmt.Sprintf("another program is attached: %s (id %d), %s", d.Program, d.XDPProgram, mode),
		fmt.Sprintf("ip link set dev %s xdp off; ip link set dev %s xdpgeneric off, or stop what attached it", d.Name, d.Name)}
}

type nativeXDP uint8

const (
	nativeUnknown nativeXDP = iota
	nativeNo
	nativeYes
)

func (d *deviceFacts) native() nativeXDP {
	switch {
	case !d.XDPFeaturesKnown:
		return nativeUnknown
	case d.XDPFeatures&netdev.XDPBasic == 0:
		return nativeNo
	}
	return nativeYes
}

func (d *deviceFacts) driver() string {
	if d.Driver == "" {
		return d.Kind
	}
	return d.Driver
}

func judgeNative(d *deviceFacts) Finding {
	remedy := "use an interface whose driver has it; --xdp-mode generic works, at a higher cost of each packet"
	card := Cards[d.Driver]
	switch {
	case d.Emulated && card.Most != 0 && d.MTU > card.Most:
		return Finding{"native xdp", d.Name, Warning, fmt.Sprintf("driver %s at MTU %d: %s", d.Driver, d.MTU, card.Loses),
			fmt.Sprintf("ip link set %s mtu %d", d.Name, card.Most)}
	case d.native() == nativeUnknown:
		return ok("native xdp", d.Name, "driver %s; this kernel does not report its features", d.driver())
	case d.native() == nativeNo && d.Kind == "veth":
		return Finding{"native xdp", d.Name, Warning, "the peer has more transmit queues than this end has receive queues",
			fmt.Sprintf("ethtool -L %s rx N, with N at least the peer's tx", d.Name)}
	case d.native() == nativeNo:
		return Finding{"native xdp", d.Name, Warning, "driver " + d.driver() + " has none (" + tested(d.driver()) + ")", remedy}
	case d.MTU > attach.SingleBufferMTU && d.XDPFeatures&netdev.XDPBuffers == 0:
		return Finding{"native xdp", d.Name, Warning, fmt.Sprintf("driver %s has none at MTU %d: frames do not fit into one page", d.driver(), d.MTU),
			fmt.Sprintf("ip link set %s mtu %d", d.Name, attach.SingleBufferMTU)}
	}
	if d.Kind == "veth" {
		return ok("native xdp", d.Name, "driver %s has it", d.driver())
	}
	return ok("native xdp", d.Name, "driver %s has it (%s)", d.driver(), tested(d.driver()))
}

func judgeKind(role Role, d *deviceFacts) (out []Finding) {
	switch {
	case d.Kind == "vlan" && role == RoleLB:
		out = append(out, Finding{"interface", d.Name, Warning, "is a VLAN device: programs on it run in generic mode",
			"attach to the device below, which reads tags itself: --interface " + d.Parent})
	case d.Kind == "vlan" && role == RoleAgent:
		out = append(out, Finding{"interface", d.Name, Warning, "is a VLAN device: decapsulation runs in generic mode",
			"no fault below a few Gbit/s; beyond that use an untagged interface"})
	case d.Kind == "bridge":
		out = append(out, Finding{"interface", d.Name, Warning, "is a bridge: programs on it run in generic mode", "attach to its port: --interface PORT"})
	}
	if d.MasterKind == "bond" || d.MasterKind == "team" {
		out = append(out, Finding{"interface", d.Name, Problem, "is a part of " + d.Master + ": packets on the other parts miss the program",
			"attach to the whole: --interface " + d.Master})
	}
	return out
}

// judgeOffloads: what the hardware merges is larger than any link takes, and leaves the load balancer as no packet that a client sent.
func judgeOffloads(role Role, d *deviceFacts) (out []Finding) {
	if d.Offloads == nil {
		return nil
	}
	if role == RoleLB {
		parts := d.Parts // of a bond: the whole shows flags of its own, which merge nothing
		if len(parts) == 0 {
			parts = []netdev.Part{{Name: d.Name, Offloads: d.Offloads}}
		}
		for _, part := range parts {
			out = append(out, judgeMerging(d, &part)...)
		}
	}
	if len(out) == 0 && d.Kind != "veth" {
		out = append(out, ok("offloads", d.Name, "none that merges packets"))
	}
	return out
}

func judgeMerging(d *deviceFacts, part *netdev.Part) (out []Finding) {
	for _, offload := range []struct{ name, short string }{{"rx-lro", "lro"}, {"rx-gro-hw", "rx-gro-hw"}} {
		if !part.Offloads[offload.name] {
			continue
		}
		if d.Driver == "virtio_net" && d.XDPProgram != 0 && !d.XDPGeneric {
			continue // virtnet_xdp_set has told the host to merge nothing, which the flag does not show
		}
		severity, found := Warning, " is on: drivers turn it off when a program comes, or refuse the program"
		if d.XDPProgram != 0 {
			severity, found = Problem, " is on: packets are merged before they reach the program"
		}
		out = append(out, Finding{"offloads", part.Name, severity, offload.name + found, fmt.Sprintf("ethtool -K %s %s off", part.Name, offload.short)})
	}
	return out
}

// judgeVeth: the ends of a veth pair leave out what a wire would need.
func judgeVeth(role Role, d *deviceFacts) (out []Finding) {
	out = append(out, judgePeer(role, d)...)
	for _, name := range []string{"tx-checksum-ip-generic", "tx-checksum-ipv4"} {
		if d.Offloads[name] {
			out = append(out, Finding{"veth", d.Name, Warning, "checksums are left to hardware that is not there: programs that send such frames on send them broken",
				fmt.Sprintf("ethtool -K %s tx off, and the same on the peer", d.Name)})
			break
		}
	}
	if role == RoleAgent && d.RPSKnown && !d.RPS && runtime.NumCPU() > 1 {
		out = append(out, Finding{"veth", d.Name, Warning, "packets of one connection run on several CPUs and are reordered",
			fmt.Sprintf("echo %x > /sys/class/net/%s/queues/rx-0/rps_cpus", 1<<min(runtime.NumCPU(), 31)-1, d.Name)})
	}
	if len(out) == 0 {
		out = append(out, ok("veth", d.Name, "behaves like a wire"))
	}
	return out
}

// judgePeer: a program's frames wake the peer only if it has a program of its own. With GRO alone they wait for the next ordinary packet:
// what a load balancer sends is unusable then.
func judgePeer(role Role, d *deviceFacts) []Finding {
	name := cmp.Or(d.Peer.Name, "PEER")
	remedy := fmt.Sprintf("in the peer's network namespace: ballast pass --interface %s", name)
	switch {
	case d.Peer.Program != 0:
		return nil
	case d.XDPFeaturesKnown && d.XDPFeatures&netdev.XDPTransmit == 0:
		return []Finding{{"veth", d.Name, Problem, "the peer has no XDP program: frames that a program sends there vanish", remedy}}
	case role != RoleLB: // few of its frames go that way, and others wake the peer
		return nil
	case d.Peer.Known:
		return []Finding{{"veth", d.Name, Problem, "the peer has no XDP program, and GRO is not enough: frames that a program sends there wait for the next ordinary packet", remedy}}
	}
	return []Finding{{"veth", d.Name, Warning, "the peer cannot be seen from here: without an XDP program there, frames that a program sends wait or vanish", remedy}}
}

func judgeQueues(role Role, d *deviceFacts) []Finding {
	physical := d.Kind == "device" && d.Driver != "" && !strings.HasPrefix(d.Name, "lo")
	if role == RoleLB && physical && d.ReceiveQueues == 1 && runtime.NumCPU() > 1 {
		return []Finding{{"queues", d.Name, Warning, fmt.Sprintf("one receive queue: one of %d CPUs does all the work", runtime.NumCPU()),
			fmt.Sprintf("ethtool -L %s combined %d, if the hardware has more", d.Name, runtime.NumCPU())}}
	}
	return nil
}
