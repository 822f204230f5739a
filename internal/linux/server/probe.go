// SYNs and datagrams that show what becomes of a service's packets on this host.
package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Fate is what became of a probe.
type Fate uint32

// What becomes of them.
const (
	ProbeUnanswered = Fate(serverProbeFatePROBE_UNANSWERED) // nothing yet
	ProbeAnswered   = Fate(serverProbeFatePROBE_ANSWERED)   // by a SYN-ACK or a datagram
	ProbeRefused    = Fate(serverProbeFatePROBE_REFUSED)    // whoever takes it has no listener
	ProbeRejected   = Fate(serverProbeFatePROBE_REJECTED)   // by a rule of this host's, as it seems
	ProbeReturned   = Fate(serverProbeFatePROBE_RETURNED)   // the host was sending it back to the network
	// ProbeUnreachable is one by UDP of which ICMP says that it does not arrive.
	ProbeUnreachable = Fate(serverProbeFatePROBE_UNREACHABLE)
)

// Probe is a SYN, or an empty datagram, that this host is made to receive after the tunnel: a device's tc ingress, address translation, routes and firewall
// meet it as a client's. What leaves because of it by a device with the programs is noted there and dropped, for eight seconds at most: a client's own packets
// between the same ends are not told from it.
type Probe struct {
	Device          *net.Interface // that it seems to come in by
	Client, Service netip.AddrPort // that it seems to come from; where to. No two probes within some minutes have both in common
	Sequence        uint32
	UDP             bool
}

func (p *Probe) protocol() uint8 {
	if p.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// Implementation constants of the frame.
const (
	fateBits    = 8  // PROBE_FATE_BITS
	timeShift   = 30 // PROBE_TIME_SHIFT
	probeHops   = 64
	probeWindow = 65535
	probeMSS    = 1200
	tcpSYN      = 0x02
	tcpRST      = 0x04
	udpHeader   = 8
)

// SendProbe has the host receive a probe. It works in the calling thread's network namespace, and from Linux 5.18 on.
func (s *Server) SendProbe(p *Probe) error {
	looks := s.objects.Probing
	if p.UDP {
		looks = s.objects.ProbingDatagrams
	}
	if err := looks.Set(uint32(1)); err != nil {
		return fmt.Errorf("have programs look for probes: %w", err)
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	if err := s.objects.Probes.Put(probeKey(p), uint32(now>>timeShift)<<fateBits|uint32(ProbeUnanswered)); err != nil {
		return fmt.Errorf("note a probe of %s: %w", p.Service, err)
	}
	return s.receive(p, p.Sequence, tcpSYN)
}

// EndProbe lets whoever has answered a probe forget it. What leaves because of one by UDP leaves from then on.
func (s *Server) EndProbe(p *Probe) error {
	if p.UDP {
		if err := s.objects.Probes.Delete(probeKey(p)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget a probe of %s: %w", p.Service, err)
		}
		return nil
	}
	return s.receive(p, p.Sequence+1, tcpRST)
}

// ProbeFate returns what has become of a probe so far.
func (s *Server) ProbeFate(p *Probe) (Fate, error) {
	var note uint32
	if err := s.objects.Probes.Lookup(probeKey(p), &note); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("read what became of a probe of %s: %w", p.Service, err)
	}
	return Fate(note & (1<<fateBits - 1)), nil
}

func probeKey(p *Probe) translatedFlow {
	key := translatedFlow{Service: plan.PortKey{Address: plan.WireAddress(p.Service.Addr()), Protocol: p.protocol()}, Client: plan.WireAddress(p.Client.Addr())}
	binary.BigEndian.PutUint16(key.Service.Port[:], p.Service.Port())
	binary.BigEndian.PutUint16(key.ClientPort[:], p.Client.Port())
	if p.Service.Addr().Is6() {
		key.Service.IPv6 = 1
	}
	return key
}

// receive has the kernel take a segment for one that has come by the device.
func (s *Server) receive(p *Probe, sequence uint32, flags byte) error {
	frame, err := probeFrame(p, sequence, flags)
	if err != nil {
		return err
	}
	_, err = s.objects.ServerXdp.Run(&ebpf.RunOptions{Data: frame, Repeat: 1, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		Context: struct{ Data, End, Meta, Ifindex, Queue, Egress uint32 }{End: uint32(len(frame)), Ifindex: uint32(p.Device.Index)}})
	if err != nil {
		return fmt.Errorf("have the host receive a probe of %s by %s: %w", p.Service, p.Device.Name, err)
	}
	return nil
}

func probeFrame(p *Probe, sequence uint32, flags byte) ([]byte, error) {
	segment := binary.BigEndian.AppendUint16(nil, p.Client.Port())
	segment = binary.BigEndian.AppendUint16(segment, p.Service.Port())
	if p.UDP {
		segment = append(segment, 0, udpHeader, 0, 0)
	} else {
		segment = binary.BigEndian.AppendUint32(segment, sequence)
		segment = append(segment, 0, 0, 0, 0, 6<<4, flags)
		segment = binary.BigEndian.AppendUint16(segment, probeWindow)
		segment = append(segment, 0, 0, 0, 0, unix.TCPOPT_MAXSEG, 4, probeMSS>>8, probeMSS&0xff)
	}
	var ip []byte
	protocol := uint16(unix.ETH_P_IP)
	if p.Service.Addr().Is6() {
		protocol = unix.ETH_P_IPV6
		ip = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(segment)))
		ip = append(ip, p.protocol(), probeHops)
	} else {
		ip = binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(segment)))
		ip = append(ip, 0, 0, 0x40, 0, probeHops, p.protocol(), 0, 0) // not to be fragmented
	}
	ip = append(ip, p.Client.Addr().AsSlice()...)
	ip = append(ip, p.Service.Addr().AsSlice()...)
	packet := append(ip, segment...)
	if !wire.CompleteChecksum(packet) {
		return nil, fmt.Errorf("make a probe of %s: it is no packet", p.Service)
	}
	frame := append([]byte(nil), p.Device.HardwareAddr...)
	frame = append(frame, 2, 0, 0, 0, 0, 1) // a source that no device has
	return append(binary.BigEndian.AppendUint16(frame, protocol), packet...), nil
}
