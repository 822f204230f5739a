package server_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A tagger does what a load balancer with a connection table does to a client's packets: whatever the echo's cookie is, it makes it
// carry the tag that is wanted for the connection. It sits where the client's packets leave.
type tagger struct {
	rig   *rig
	flows *ebpf.Map
}

// taggedFlow is what the tagger knows of a connection; the layout is that of its program.
type taggedFlow struct {
	Cookie    [2]uint32 // by parity of the epoch; noCookie: packets of that epoch pass as they are
	Rewritten uint64
}

const (
	noCookie  = ^uint32(0)
	firstPort = 20000 // of clients whose packets are tagged
)

func newTagger(r *rig) *tagger {
	r.t.Helper()
	flows, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 16, MaxEntries: 1024})
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { flows.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual MIT/GPL", Instructions: tagging(flows.FD(), int32(r.fleet.Services[0].CookieBits)),
	})
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { program.Close() })
	r.atEgress(r.client, program)
	return &tagger{r, flows}
}

// atEgress runs a program at the egress of an end's device.
func (r *rig) atEgress(end *netspace.Space, program *ebpf.Program) {
	r.t.Helper()
	attached := &attach.TC{Program: program, Hook: attach.Egress}
	progtest.Check(r.t, end.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		attached.Ifindex = device.Index
		return attached.Attach()
	}))
	r.t.Cleanup(func() { progtest.Check(r.t, end.Do(attached.Detach)) })
}

// tagging writes the cookie of a flow into TSecr of every segment but SYNs and RSTs whose timestamp is where Linux puts it.
func tagging(flows int, bits int32) asm.Instructions {
	const (
		ipv4, ipv6 = 0x0008, 0xdd86 // as a little-endian machine reads them
		header     = -40            // 32 bytes of the stack
		key, fresh = -4, -48
		port80     = 0x5000
		nopNopTS   = 0x0a080101
	)
	mask := int32(1)<<bits - 1
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, 16, asm.Word), // protocol
		asm.Mov.Imm(asm.R8, 34),
		asm.Mov.Imm(asm.R7, 0),
		asm.JEq.Imm(asm.R1, ipv4, "ip"),
		asm.Mov.Imm(asm.R8, 54),
		asm.Mov.Imm(asm.R7, 1<<16),
		asm.JNE.Imm(asm.R1, ipv6, "pass"),

		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("ip"),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, header),
		asm.Mov.Imm(asm.R4, 32),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.RFP, header+2, asm.Half),
		asm.JNE.Imm(asm.R1, port80, "pass"),
		asm.LoadMem(asm.R1, asm.RFP, header+13, asm.Byte),
		asm.JSet.Imm(asm.R1, 2|4, "pass"), // SYN, RST
		asm.LoadMem(asm.R1, asm.RFP, header+20, asm.Word),
		asm.JNE.Imm(asm.R1, nopNopTS, "pass"),

		asm.LoadMem(asm.R1, asm.RFP, header, asm.Half),
		asm.Or.Reg(asm.R1, asm.R7),
		asm.StoreMem(asm.RFP, key, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, flows),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),

		asm.LoadMem(asm.R7, asm.RFP, header+28, asm.Word),
		asm.HostTo(asm.BE, asm.R7, asm.Word),
		asm.LoadMem(asm.R9, asm.R0, 0, asm.Word),
		asm.JSet.Imm(asm.R7, 1<<(bits-1), "odd"),
		asm.Ja.Label("chosen"),
		asm.LoadMem(asm.R9, asm.R0, 4, asm.Word).WithSymbol("odd"),
		asm.Mov.Imm32(asm.R1, -1).WithSymbol("chosen"),
		asm.JEq.Reg(asm.R9, asm.R1, "pass"),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.And.Imm(asm.R1, mask),
		asm.JEq.Reg(asm.R1, asm.R9, "pass"),
		asm.Xor.Reg(asm.R7, asm.R1),
		asm.Or.Reg(asm.R7, asm.R9),
		asm.HostTo(asm.BE, asm.R7, asm.Word),
		asm.StoreMem(asm.RFP, fresh, asm.R7, asm.Word),
		asm.Mov.Imm(asm.R1, 1),
		asm.Add.Imm(asm.R0, 8),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),

		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Add.Imm(asm.R2, 16),
		asm.LoadMem(asm.R3, asm.RFP, header+28, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Mov.Imm(asm.R5, 4),
		asm.FnL4CsumReplace.Call(),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Add.Imm(asm.R2, 28),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, fresh),
		asm.Mov.Imm(asm.R4, 4),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"),
		asm.Return(),
	}
}

// want makes the packets of a connection from this port to a service carry a tag from now on.
func (g *tagger) want(port int, vip netip.Addr, tag uint16) {
	g.rig.t.Helper()
	flow := taggedFlow{Cookie: [2]uint32{noCookie, noCookie}}
	service := g.rig.fleet.Service(vip.String())
	for epoch, key := range g.rig.fleet.Keys.Cookie {
		hash := cookie.FlowHash(cookie.ServiceKey(key, vip, service.Protocol), clientOf(port, vip), servicePort)
		text := service.Servers[0].ID | tag<<service.IDBits()
		flow.Cookie[epoch&1] = uint32(cookie.Encode(service.CookieBits, epoch, text, hash))
	}
	progtest.Check(g.rig.t, g.flows.Put(flowKey(port, vip), flow))
}

// rewritten is how many packets of a connection were, since want.
func (g *tagger) rewritten(port int, vip netip.Addr) uint64 {
	g.rig.t.Helper()
	var flow taggedFlow
	progtest.Check(g.rig.t, g.flows.Lookup(flowKey(port, vip), &flow))
	return flow.Rewritten
}

func flowKey(port int, vip netip.Addr) []byte {
	key := binary.BigEndian.AppendUint16(nil, uint16(port))
	if vip.Is6() {
		return append(key, 1, 0)
	}
	return append(key, 0, 0)
}

// clientOf is the client's end of a connection to a service.
func clientOf(port int, vip netip.Addr) netip.AddrPort {
	if vip.Is6() {
		return netip.AddrPortFrom(netip.MustParseAddr("fd09::1"), uint16(port))
	}
	return netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), uint16(port))
}

// tag is what the last packet from a service to a port carried above the id.
func (w *watcher) tag(port int, vip netip.Addr) uint16 {
	last, ok := w.flows.Load(clientOf(port, vip))
	if !ok {
		return 0
	}
	return last.(lastSeen).tag
}

// await waits until the watcher has read a packet with this tag: it may lag behind.
func (w *watcher) await(r *rig, port int, vip netip.Addr, tag uint16) {
	r.t.Helper()
	r.await(fmt.Sprintf("tag %d on packets of %s to port %d, not %d", tag, vip, port, w.tag(port, vip)),
		func() bool { return w.tag(port, vip) == tag })
}
