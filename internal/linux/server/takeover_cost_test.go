package server_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

const (
	takeOverRounds  = 25
	takeOverClients = 2000 // connections of a round, all of which wait to be accepted
	takeOverBatch   = 50
	takeOverPort    = 1024 // of the first
	takeOverHello   = 350  // bytes

	takeOverSequence = 1000 // of the SYNs

	synACKLooked = 32 // bytes of a SYN-ACK, from the client's port on
	synACKLookAt = 14 + 20 + 2
	synACKValue  = 14 + 20 + 20 + 4 + 2 + 2 - synACKLookAt // behind MSS and SACK
)

// TestCostOfTakingOver prints what a connection costs this host until its first data is there: one that it accepts itself, and one that a load balancer has begun
// (session tls). It asserts that all are there, and nothing about time: time is not ours. The frames are as if they came by the device; what the kernel does
// with them, the agent's programs included, is done in the thread that is timed. A load balancer answers SYN and acknowledgement of the latter.
func TestCostOfTakingOver(t *testing.T) {
	if os.Getenv("BALLAST_BENCH") == "" {
		t.Skip("measures: set BALLAST_BENCH=1")
	}
	r := &takeOverRig{rig: newRig(t, rigOptions{sysctls: map[string]string{"net/ipv4/tcp_max_syn_backlog": "8192", "net/core/somaxconn": "8192"}})}
	progtest.Check(t, r.agent.FollowClock())
	r.prepare()
	for round := range takeOverRounds {
		for i := range 2 {
			if (round+i)%2 == 0 {
				r.acceptAll()
			} else {
				r.takeOverAll()
			}
		}
	}
	fastest := map[string]float64{}
	for what, took := range r.took {
		slices.Sort(took)
		fastest[what] = took[takeOverRounds/4]
		t.Logf("%-15s %5.2f us (%.2f to %.2f)", what, fastest[what], took[0], took[takeOverRounds-1])
	}
	accepted := fastest["SYN"] + fastest["acknowledgement"] + fastest["data"]
	t.Logf("taken over: %.2f of %.2f us, which an accepted one takes with its data, and %.2f us without", fastest["taken over"]/accepted, accepted, accepted-fastest["data"])
}

type takeOverRig struct {
	*rig
	listener int
	device   *net.Interface   // the server's
	router   net.HardwareAddr // of the client's
	answers  *ebpf.Map        // by the client's port, as on the wire
	took     map[string][]float64
}

// prepare listens without accepting, and puts in the client's place what looks at SYN-ACKs and drops all.
func (r *takeOverRig) prepare() {
	r.took = map[string][]float64{}
	var client *net.Interface
	progtest.Check(r.t, r.client.Do(func() (err error) { client, err = net.InterfaceByName("eth0"); return err }))
	progtest.Check(r.t, r.server.Do(func() (err error) {
		if r.device, err = net.InterfaceByName("eth0"); err != nil {
			return err
		}
		if r.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		r.router = client.HardwareAddr
		neighbour := &netlink.Neigh{LinkIndex: r.device.Index, State: netlink.NUD_PERMANENT, IP: net.IP{10, 9, 0, 1}, HardwareAddr: client.HardwareAddr}
		return errors.Join(unix.Bind(r.listener, &unix.SockaddrInet4{Port: servicePort, Addr: r.vips[0].As4()}), unix.Listen(r.listener, 8192), netlink.NeighSet(neighbour))
	}))
	r.t.Cleanup(func() { unix.Close(r.listener) })
	var err error
	r.answers, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: synACKLooked, MaxEntries: 1 << 16})
	progtest.Check(r.t, err)
	look := r.program(asm.Instructions{
		asm.Mov.Imm(asm.R2, synACKLookAt),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -synACKLooked),
		asm.Mov.Imm(asm.R4, synACKLooked),
		asm.FnXdpLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.RFP, -synACKLooked, asm.Half),
		asm.StoreMem(asm.RFP, -synACKLooked-8, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, r.answers.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -synACKLooked-8),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -synACKLooked),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"), // XDP_DROP
		asm.Return(),
	})
	progtest.Check(r.t, r.client.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: look, Interface: client.Index, Flags: link.XDPDriverMode})
		if err == nil {
			r.t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

func (r *takeOverRig) program(code asm.Instructions) *ebpf.Program {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "MIT", Instructions: code})
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { program.Close() })
	return program
}

// acceptAll opens connections as clients do.
func (r *takeOverRig) acceptAll() {
	for i := range uint16(takeOverClients) {
		progtest.Check(r.t, r.answers.Put(answerOf(takeOverPort+i), [synACKLooked]byte{}))
	}
	r.feed("SYN", func(netip.AddrPort) (*layers.TCP, int) {
		return &layers.TCP{Seq: takeOverSequence, SYN: true, Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionData: []byte{5, 0xb4}},
			{OptionType: layers.TCPOptionKindSACKPermitted}, {OptionType: layers.TCPOptionKindTimestamps, OptionData: []byte{0, 0, 0, 1, 0, 0, 0, 0}},
			{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindWindowScale, OptionData: []byte{7}}}}, 0
	})
	answer := func(client netip.AddrPort) *layers.TCP {
		seen := r.answerTo(client.Port())
		return follows(binary.BigEndian.Uint32(seen[2:]), binary.BigEndian.Uint32(seen[synACKValue:]))
	}
	r.feed("acknowledgement", func(client netip.AddrPort) (*layers.TCP, int) { return answer(client), 0 })
	before := r.count("ingress_restored")
	r.feed("data", func(client netip.AddrPort) (*layers.TCP, int) { return answer(client), takeOverHello })
	if restored := r.count("ingress_restored") - before; restored != takeOverClients {
		r.t.Fatalf("%d of %d connections' data has a cookie", restored, takeOverClients)
	}
	r.drain()
}

// answerOf is where the answer to a SYN from a port is.
func answerOf(port uint16) uint32 { return uint32(port>>8 | port<<8) }

// answerTo is zero until there is one.
func (r *takeOverRig) answerTo(port uint16) (seen [synACKLooked]byte) {
	progtest.Check(r.t, r.answers.Lookup(answerOf(port), &seen))
	return seen
}

// follows is behind a SYN and its answer.
func follows(number, value uint32) *layers.TCP {
	echo := layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionData: binary.BigEndian.AppendUint32([]byte{0, 0, 0, 2}, value)}
	nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop}
	return &layers.TCP{Seq: takeOverSequence + 1, Ack: number + 1, ACK: true, Options: []layers.TCPOption{nop, nop, echo}}
}

// takeOverAll sends the first data of connections that a load balancer has begun.
func (r *takeOverRig) takeOverAll() {
	service, vip := &r.fleet.Services[0], r.vips[0]
	key, marks := plan.SYNCookieKey(&r.fleet.Keys, vip), cookie.ServiceKey(r.fleet.Keys.Cookie[1], vip, model.ProtocolTCP)
	told, now := syncookie.Options{MSS: 1460, WindowScale: 7, SACK: true}, uint64(time.Now().Unix())
	before := r.count("ingress_taken_over")
	r.feed("taken over", func(client netip.AddrPort) (*layers.TCP, int) {
		value := syncookie.Timestamp(service.CookieBits, 1, serverID, cookie.FlowHash(marks, client, servicePort))
		number := syncookie.Make(key, syncookie.Flow{Client: client, ServicePort: servicePort, Sequence: takeOverSequence, Timestamp: value}, told, now)
		return follows(number, value), takeOverHello
	})
	if taken := r.count("ingress_taken_over") - before; taken != takeOverClients {
		r.t.Fatalf("%d of %d connections are taken over", taken, takeOverClients)
	}
	r.drain()
}

// drain accepts all connections, looks whether their data is there, and resets them.
func (r *takeOverRig) drain() {
	buffer := make([]byte, 2*takeOverHello)
	for n := range takeOverClients {
		fd, _, err := unix.Accept4(r.listener, unix.SOCK_NONBLOCK)
		if err != nil {
			r.t.Fatalf("%d of %d connections wait to be accepted: %v", n, takeOverClients, err)
		}
		if got, err := unix.Read(fd, buffer); got != takeOverHello {
			r.t.Fatalf("a connection has %d bytes of %d: %v", got, takeOverHello, err)
		}
		progtest.Check(r.t, errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd)))
	}
}

// feed has the kernel receive one frame of each client by the server's device, and notes the CPU time of each.
func (r *takeOverRig) feed(what string, of func(client netip.AddrPort) (tcp *layers.TCP, payload int)) {
	r.t.Helper()
	var list [][]byte
	for i := range takeOverClients {
		client := netip.AddrPortFrom(balancers[0], uint16(takeOverPort+i))
		tcp, payload := of(client)
		tcp.SrcPort, tcp.DstPort, tcp.Window = layers.TCPPort(client.Port()), servicePort, 500
		ip := ipLayer(client.Addr(), r.vips[0], layers.IPProtocolTCP, 0)
		progtest.Check(r.t, tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)))
		eth := &layers.Ethernet{SrcMAC: r.router, DstMAC: r.device.HardwareAddr, EthernetType: layers.EthernetTypeIPv4}
		list = append(list, build(r.t, eth, ip, tcp, gopacket.Payload(make([]byte, payload))))
	}
	feeder := r.feeder(list)
	progtest.Check(r.t, r.server.Do(func() error { // on a thread of its own
		options := ebpf.RunOptions{Data: list[0], Repeat: takeOverBatch, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
			Context: struct{ Data, DataEnd, Meta, Ifindex, Queue, Egress uint32 }{DataEnd: uint32(len(list[0])), Ifindex: uint32(r.device.Index)}}
		var took time.Duration
		for n := uint16(takeOverBatch); n <= takeOverClients; n += takeOverBatch {
			before, err := threadCPU()
			if err != nil {
				return err
			}
			if _, err := feeder.Run(&options); err != nil {
				return err
			}
			after, err := threadCPU()
			if err != nil {
				return err
			}
			took += after - before
			if what == "SYN" { // a device's queue is short
				await.True(r.t, "the answers come", func() bool { return r.answerTo(takeOverPort+n-1) != [synACKLooked]byte{} })
			}
		}
		r.took[what] = append(r.took[what], float64(took.Nanoseconds())/takeOverClients/1000)
		return nil
	}))
}

// feeder makes a program that writes the frames, which are equally long, one after the other.
func (r *takeOverRig) feeder(list [][]byte) *ebpf.Program {
	length := len(list[0])
	all, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(length), MaxEntries: uint32(len(list))})
	progtest.Check(r.t, err)
	next, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	progtest.Check(r.t, err)
	defer all.Close() // the program has them
	defer next.Close()
	for i, frame := range list {
		progtest.Check(r.t, all.Put(uint32(i), frame))
	}
	return r.program(slices.Concat(
		asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.StoreImm(asm.RFP, -4, 0, asm.Word)},
		lookUp(next),
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
			asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R0, 0, asm.R1, asm.Word),
		},
		lookUp(all), writeFrame(length),
		asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return(), asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return()},
	))
}
