package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Implementation constants
const (
	answering     = 5       // the server whose answers are measured
	answeredPorts = 1 << 15 // of one client
	clientsDevice = "clients"

	timestampAt = wrapper.EchoAt - 4 // TSval of NOP NOP TS
)

var (
	throughVIP    = netip.MustParseAddr("198.51.100.18")
	toClients     = netip.MustParsePrefix("192.0.2.1/24")
	clientsRouter = netip.MustParseAddr("192.0.2.2")
	routerMAC     = net.HardwareAddr{2, 0, 0, 0, 0, 8}
	answered      = netip.MustParseAddr("10.9.8.7")
	allClients    = netip.MustParsePrefix("10.0.0.0/8")
)

// throughService writes its cookies itself, and restores the servers' timestamps.
func throughService() model.Service {
	s := newService(throughVIP, model.DispatchRR)
	s.Return, s.Forward, s.Fallback = model.ReturnThrough, model.ForwardL2, model.FallbackHash
	return s
}

// routeToClients makes a namespace with a router to all clients, for programs that ask the kernel's FIB.
func routeToClients() (space *netspace.Space, device net.HardwareAddr, err error) {
	if space, err = quietSpace(); err != nil {
		return nil, nil, err
	}
	end := func(name string, addresses ...netip.Prefix) netspace.End {
		return netspace.End{Space: space, Interface: name, MTU: 1500, Addresses: addresses}
	}
	steps := []func() error{
		func() error { return netspace.Connect(end(clientsDevice, toClients), end("router")) },
		func() error { return space.Sysctl("net.ipv4.conf.all.forwarding", "1") },
		func() error {
			return space.Route(allClients, 0, netspace.NextHop{Gateway: clientsRouter, Interface: clientsDevice})
		},
		func() error {
			return space.KnowNeighbours(clientsDevice, map[netip.Addr]net.HardwareAddr{clientsRouter: routerMAC})
		},
		func() error { device, err = space.MAC(clientsDevice); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			space.Close()
			return nil, nil, fmt.Errorf("route to the clients: %w", err)
		}
	}
	return space, device, nil
}

// throughSubjects are packets of connections with return: through: a client's, and a server's answers with a timestamp and without. They are routed to
// clients' devices, with that MAC address.
func (r *rig) throughSubjects(device net.HardwareAddr) []subject {
	in := subject{name: "through-in", keeps: true, verdict: "forwarded_by_cookie", cell: carryingCell(&r.fleet, throughVIP, segmentACK), check: r.checkRestored}
	out := subject{name: "through-out", keeps: true, verdict: "returned", action: xdpRedirect, only: answeredPorts, cell: answerCell(ackOptions),
		check: func(output []byte, s sent) error { return checkSame(output, r.marked(s, device)) }}
	unmarked := out
	unmarked.name, unmarked.verdict, unmarked.cell = "through-out-unmarked", "returned_unmarked", answerCell(nil)
	unmarked.check = func(output []byte, s sent) error { return checkSame(output, routed(s, device)) }
	all := []subject{in, out, unmarked}
	for i := range all {
		all[i].program, all[i].lb, all[i].place, all[i].prepare = r.lb.Program(), r.lb, r.places[throughVIP.String()], r.setClocks
	}
	return all
}

// answerCell is a server's segment to a client, from the service.
func answerCell(options []byte) wrapper.Cell {
	cell := wrapper.Cell{Frame: frame(throughVIP, segmentACK, options), Answers: throughVIP}
	server := macOf(serverByL2(answering))
	copy(cell.Frame[6:], server[:])
	client := answered.As4()
	copy(cell.Frame[30:], client[:])
	binary.BigEndian.PutUint16(cell.Frame[34:], servicePort)
	return cell
}

// setClocks makes the clocks of all servers read what the answers' timestamps say.
func (r *rig) setClocks() error {
	cell := answerCell(ackOptions)
	var errs []error
	for _, index := range r.places[throughVIP.String()].Counters {
		errs = append(errs, r.lb.SetClock(index, binary.BigEndian.Uint32(cell.Frame[timestampAt:])-clockNow()))
	}
	return errors.Join(errs...)
}

// clockNow is the node's clock in ms, as the program reads it.
func clockNow() uint32 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err) // there is no Linux without it
	}
	return uint32(now.Nano() / 1_000_000)
}

// checkRestored: the server gets the packet with a timestamp of its own, of which the client has echoed the low bits.
func (r *rig) checkRestored(output []byte, s sent) error {
	mac, want := macOf(serverByL2(s.server())), bytes.Clone(s.bytes())
	if len(output) != len(want) {
		return fmt.Errorf("the output is %d bytes, want %d", len(output), len(want))
	}
	echo, restored := binary.BigEndian.Uint32(want[wrapper.EchoAt:]), binary.BigEndian.Uint32(output[wrapper.EchoAt:])
	if bits := s.cell.CookieBits; restored<<bits>>bits != echo>>bits {
		return fmt.Errorf("the timestamp %#x is restored from %#x", restored, echo)
	}
	copy(want, mac[:])
	copy(want[6:], ourMAC)
	replaceTCP(want, wrapper.EchoAt, restored)
	return checkSame(output, want)
}

// routed is what the router to the clients gets of an answer.
func routed(s sent, device net.HardwareAddr) []byte {
	out := s.bytes()
	copy(out, routerMAC)
	copy(out[6:], device)
	binary.BigEndian.PutUint16(out[24:], checksumReplace(binary.BigEndian.Uint16(out[24:]), uint32(out[22])<<8, uint32(out[22]-1)<<8))
	out[22]--
	return out
}

// marked is the same with the cookie.
func (r *rig) marked(s sent, device net.HardwareAddr) []byte {
	out := routed(s, device)
	service := r.fleet.Service(throughVIP.String())
	client := netip.AddrPortFrom(answered, binary.BigEndian.Uint16(out[36:]))
	hash := cookie.FlowHash(cookie.ServiceKey(r.fleet.Keys.Cookie[cookieEpoch], throughVIP, model.ProtocolTCP), client, servicePort)
	text := uint32(cookie.Encode(service.CookieBits, cookieEpoch, answering, hash))
	replaceTCP(out, timestampAt, binary.BigEndian.Uint32(out[timestampAt:])<<service.CookieBits|text)
	return out
}

// replaceTCP writes a word of a frame's TCP header.
func replaceTCP(frame []byte, at int, word uint32) {
	check := binary.BigEndian.Uint16(frame[tcpChecksumAt:])
	binary.BigEndian.PutUint16(frame[tcpChecksumAt:], checksumReplace(check, binary.BigEndian.Uint32(frame[at:]), word))
	binary.BigEndian.PutUint32(frame[at:], word)
}
