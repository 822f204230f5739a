package lb

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/doctest"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestDocsShowTheBytesOfThePrograms(t *testing.T) {
	space := newDocSpace(t)
	blocks := map[string]string{}
	maps.Copy(blocks, walkOfAConnection(t, space))
	maps.Copy(blocks, walkOfAnAnswer(t, space))
	maps.Copy(blocks, formatsOfTunnels(t))
	maps.Copy(blocks, formatsOfAnswers(t))
	maps.Copy(blocks, wordsOfClasses(t))
	maps.Copy(blocks, walkOfATable(t))
	blocks["golden"] = goldenTable(t)
	for name, block := range blocks {
		blocks[name] = "```\n" + block + "```\n"
	}
	doctest.Show(t, "bytes", blocks, "../../../docs/design/connection.md")
}

// golden is one vector of test/golden/cookie.json: the connection that docs/design/connection.md follows.
type golden struct {
	Key         string         `json:"key"`
	VIP         netip.Addr     `json:"vip"`
	Protocol    model.Protocol `json:"protocol"`
	Client      netip.AddrPort `json:"client"`
	ServicePort uint16         `json:"service_port"`
	CookieBits  uint8          `json:"cookie_bits"`
	Epoch       uint32         `json:"epoch"`
	ID          uint16         `json:"id"`
	FlowHash    string         `json:"flow_hash"`
	Cookie      uint16         `json:"cookie"`
}

func goldens(t *testing.T) (vectors []golden) {
	text, err := os.ReadFile("../../../test/golden/cookie.json")
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	if err != nil {
		t.Fatal(err)
	}
	return vectors
}

func goldenTable(t *testing.T) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %-6s %-33s %-5s %-33s %-5s %-16s %s\n", "bits", "epoch", "key", "id", "client", "port", "flow hash", "cookie")
	for _, v := range goldens(t) {
		if v.Protocol == model.ProtocolTCP && v.CookieBits%2 == 0 && v.VIP.Is4() {
			fmt.Fprintf(&b, "%-4d %-6d %-33s %-5d %-33s %-5d %-16s %5d = 0x%04x\n", v.CookieBits, v.Epoch, v.Key, v.ID, v.Client, v.ServicePort,
				v.FlowHash, v.Cookie, v.Cookie)
		}
	}
	return b.String()
}

// The server's clock in the walk: what its kernel puts into TSval, in ms.
const (
	clockSYNACK = 0x5be3a7c1
	clockClient = 0x0013d5f0
)

// walkOfAConnection sends one connection through the programs of both sides.
func walkOfAConnection(t *testing.T, space docSpace) map[string]string {
	vectors := goldens(t)
	v := vectors[slices.IndexFunc(vectors, func(v golden) bool { return v.CookieBits == 14 && v.VIP.Is4() })]
	var key [16]byte
	hex.Decode(key[:], []byte(v.Key))
	w := newWorld(t)
	w.update(func(want *plan.Want) {
		want.Keys = model.Keys{Placement: [16]byte{1}, Current: v.Epoch, Cookie: map[uint32][16]byte{v.Epoch: key}}
		want.Services = []plan.Service{{Service: serviceOf("web", v.VIP, func(s *model.Service) {
			s.Ports = []uint16{v.ServicePort}
			withServers(false, 7, v.ID)(s)
		})}}
	})
	server := w.want.Services[0].Servers[1]
	agent := newDocAgent(t, space, w, server)
	service := netip.AddrPortFrom(v.VIP, v.ServicePort)
	blocks := map[string]string{}

	syns := ethernet(0, ipPacket(v.Client.Addr(), v.VIP, 6, segment(v.Client, service, 1000, 0, syn, linuxSYN(clockClient, 0), nil)))
	blocks["syn"] = dissect(syns)
	sent := w.run(syns)
	if !bytes.Contains(sent.frame[:6], server.Address.AsSlice()[1:]) { // its turn comes next
		sent = w.run(syns)
	}
	blocks["syn-sent"] = dissect(sent.frame)
	delivered := agent.run(agent.xdp, sent.frame)
	if !bytes.Equal(delivered[14:], syns[14:]) {
		t.Fatal("the server got something else than the client sent")
	}

	serverMAC := testPath(server.Address).DestinationMAC
	answer := segment(service, v.Client, 5000, 1001, syn|ack, linuxSYN(clockSYNACK, clockClient), nil)
	synAck := slices.Concat(routerMAC[:], serverMAC[:], []byte{8, 0}, ipPacket(v.VIP, v.Client.Addr(), 6, answer))
	blocks["syn-ack"] = dissect(synAck)
	marked := agent.run(agent.egress, synAck)
	blocks["syn-ack-marked"] = dissect(marked)
	wire := binary.BigEndian.Uint32(marked[14+20+20+8:])
	hash := cookie.FlowHash(cookie.ServiceKey(key, v.VIP, v.Protocol), v.Client, v.ServicePort)
	if uint16(wire)&0x3fff != v.Cookie || wire>>14 != clockSYNACK&0x3ffff {
		t.Fatalf("marked with %08x", wire)
	}
	serviceKey := cookie.ServiceKey(key, v.VIP, v.Protocol)
	blocks["cookie-written"] = fmt.Sprintf(`fleet key, epoch %d   %s
service key          k0 = %016x   k1 = %016x
message              %x = client address, client port, service port
flow hash h          %016x
id                   %5d = 0x%04x
h, low 13 bits               0x%04x
id ^ h                       0x%04x
epoch bit            %d << 13 = 0x%04x
cookie               %5d = 0x%04x
T                    %10d = 0x%08x   the server's own TSval, ms
W = T << 14 | cookie              0x%08x
`, v.Epoch, v.Key, serviceKey.K0, serviceKey.K1,
		slices.Concat(v.Client.Addr().AsSlice(), []byte{byte(v.Client.Port() >> 8), byte(v.Client.Port()), byte(v.ServicePort >> 8), byte(v.ServicePort)}),
		hash, v.ID, v.ID, hash&0x1fff, (uint64(v.ID)^hash)&0x1fff, v.Epoch&1, (v.Epoch&1)<<13, v.Cookie, v.Cookie, clockSYNACK, clockSYNACK, wire)

	data := ethernet(0, ipPacket(v.Client.Addr(), v.VIP, 6, segment(v.Client, service, 1001, 5001, psh|ack, timestamps(clockClient+12, wire), []byte("GET / HTTP/1.1\r\n\r\n"))))
	blocks["data"] = dissect(data)
	sent = w.run(data)
	if sent.verdict != lbVerdictFORWARDED_BY_COOKIE {
		t.Fatalf("verdict %s", verdictNames[sent.verdict])
	}
	blocks["cookie-read"] = fmt.Sprintf(`TSecr                0x%08x
bit 13               %d: the key of the odd epoch, %d
h                    %016x
low 13 bits          0x%04x ^ 0x%04x = 0x%04x = %d
id %-5d             -> server_rows -> servers -> %s
verdict              %s
`, wire, wire>>13&1, v.Epoch, hash, wire&0x1fff, hash&0x1fff, (uint64(wire)^hash)&0x1fff, (uint64(wire)^hash)&0x1fff, v.ID, server.Address,
		strings.ToLower(verdictNames[sent.verdict]))
	restored := agent.restore(agent.run(agent.xdp, sent.frame), v.Client, service)
	if binary.BigEndian.Uint32(restored[14+20+20+8:]) != clockSYNACK {
		t.Fatalf("restored %x", restored)
	}
	blocks["data-restored"] = dissect(restored)
	blocks["restored"] = fmt.Sprintf(`W                    0x%08x
W >> 14                 0x%05x = the low 18 bits of T
newest V sent        0x%08x   from the socket's storage; delta = 0
V                    0x%08x   the newest value not after it that ends in those 18 bits
T = V + delta        %10d = 0x%08x
`, wire, wire>>14, clockSYNACK, clockSYNACK, clockSYNACK, clockSYNACK)
	return blocks
}

// A docSpace is a namespace without routes, where programs do the same on every machine.
type docSpace struct {
	*netspace.Space
	t *testing.T
}

func newDocSpace(t *testing.T) docSpace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF and network namespaces")
	}
	space, err := netspace.Create(fmt.Sprintf("ballast-docs-%d", os.Getpid()))
	progtest.Check(t, err)
	t.Cleanup(func() {
		space.Close()
		progtest.Check(t, netspace.Remove(space.Name))
	})
	return docSpace{space, t}
}

func (s docSpace) run(program *ebpf.Program, frame []byte) []byte {
	s.t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	progtest.Check(s.t, s.Do(func() error {
		_, err := program.Run(&options)
		return err
	}))
	return options.DataOut
}

// A docAgent is the server's side of one service.
type docAgent struct {
	docSpace
	xdp, ingress, egress *ebpf.Program
	holdBacks            *ebpf.Map
}

func newDocAgent(t *testing.T, space docSpace, w *world, of model.Server) *docAgent {
	t.Helper()
	dir := progtest.Pins(t)
	agent, err := server.Open(dir, server.Limits{})
	progtest.Check(t, err)
	t.Cleanup(func() { agent.Close() })
	fleet := model.Fleet{Keys: w.want.Keys}
	for _, s := range w.want.Services {
		fleet.Services = append(fleet.Services, s.Service)
	}
	wanted, err := plan.NewAgent(&fleet, func(s *model.Server) bool { return s.ID == of.ID })
	progtest.Check(t, err)
	_, err = agent.Serve(wanted.Served)
	progtest.Check(t, err)
	progtest.Check(t, agent.SetOwnAddresses(wanted.Addresses))
	pinned := func(name string) *ebpf.Map {
		found, err := filepath.Glob(filepath.Join(dir, "agent-v*", name))
		if err != nil || len(found) != 1 {
			t.Fatalf("map %s is pinned at %v, %v", name, found, err)
		}
		m, err := ebpf.LoadPinnedMap(found[0], nil)
		progtest.Check(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	mac := testPath(of.Address).DestinationMAC
	progtest.Check(t, pinned("interfaces").Put(uint32(testIfindex), [8]byte(append(mac[:], 0, 0))))
	made := &docAgent{docSpace: space, holdBacks: pinned("hold_backs")}
	made.xdp, made.ingress, made.egress = agent.Programs()
	return made
}

// restore makes a connection whose wire clock is that of the walk, and sends it a segment.
func (a *docAgent) restore(frame []byte, client, service netip.AddrPort) (restored []byte) {
	a.t.Helper()
	for _, address := range []netip.Addr{client.Addr(), service.Addr()} {
		progtest.Check(a.t, a.AddAddress("lo", netip.PrefixFrom(address, address.BitLen())))
	}
	var near, far net.Conn
	progtest.Check(a.t, a.Do(func() error {
		listener, err := net.Listen("tcp4", service.String())
		if err != nil {
			return err
		}
		defer listener.Close()
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(client)}
		if far, err = dialer.Dial("tcp4", service.String()); err == nil {
			near, err = listener.Accept()
		}
		return err
	}))
	defer far.Close()
	defer near.Close()
	wire := frame[14+20+20+8:]
	storage := struct { // struct hold_back
		Delta, HeldFrom, DeltaBefore, NewestSent, NewestEcho, Generation uint32
		Cookie, CookieBefore                                             uint16
		CookieBits, State                                                uint8
		Tag                                                              uint16
	}{NewestSent: clockSYNACK, NewestEcho: clockSYNACK, HeldFrom: clockSYNACK, State: 1, CookieBits: 14,
		Cookie: binary.BigEndian.Uint16(wire[2:]) & 0x3fff}
	raw, err := near.(*net.TCPConn).SyscallConn()
	progtest.Check(a.t, err)
	progtest.Check(a.t, raw.Control(func(fd uintptr) { err = a.holdBacks.Update(int32(fd), storage, ebpf.UpdateAny) }))
	progtest.Check(a.t, err)
	toLoopback := slices.Concat(make([]byte, 6), frame[6:]) // whose address is all zeros
	return slices.Concat(frame[:14], a.run(a.ingress, toLoopback)[14:])
}

// segment is a TCP segment with sequence numbers.
func segment(from, to netip.AddrPort, seq, acknowledged uint32, flags byte, options, payload []byte) []byte {
	b := tcpSegment(from, to, flags, options, payload)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], acknowledged)
	setTransportChecksum(b, 16, from.Addr(), to.Addr(), unix.IPPROTO_TCP)
	return b
}

// linuxSYN are the options of a SYN or SYN-ACK of Linux.
func linuxSYN(value, echo uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{2, 4, 5, 0xb4, 4, 2, 8, 10}, value)
	return append(binary.BigEndian.AppendUint32(b, echo), 1, 3, 3, 7)
}
