package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/clienthello"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants: what clients of TLS 1.3 send in one segment, with a key of X25519.
const (
	sessionServer  = 7 // whose ticket they show
	ticketLength   = 160
	extensionShown = 41

	synACKLength = 14 + 20 + 20 + 20
)

// helloExtensions are the kinds and lengths of a hello's extensions, in the order of OpenSSL.
var helloExtensions = [][2]uint16{{0, 16}, {11, 4}, {10, 12}, {35, 0}, {16, 14}, {22, 0}, {23, 0}, {13, 36}, {43, 5}, {45, 2}, {51, 38}}

// sessionSubjects are what begins a connection with session tls, each of another one: a SYN that is answered, a hello that shows a ticket and one that
// shows none; and a packet of one that knows its cookie.
func (r *rig) sessionSubjects() []subject {
	established := carryingCell(&r.fleet, sessionVIP, segmentACK)
	answered := r.answers(sessionVIP)
	place, lb := r.places[sessionVIP.String()], r.lb.Program()
	first := func(name, verdict string, shown []byte, check func([]byte, sent) error) subject {
		whole := segment(sessionVIP, segmentACK, ackOptions, clientHello(shown))
		cell := carryingCell(&r.fleet, sessionVIP, segmentACK)
		cell.Frame, cell.Behind, cell.Answered = [wrapper.FrameLength]byte(whole), whole[wrapper.FrameLength:], answered
		return subject{name: name, program: lb, cell: cell, verdict: verdict, place: place, check: check, fresh: &r.begun, prepare: asOfNow(answered)}
	}
	name := sessionid.Seal(plan.SessionIDKey(r.fleet.Keys.Cookie[cookieEpoch], sessionVIP), 77, sessionServer)
	return []subject{
		r.answeredSYN("session-syn", sessionVIP),
		first("session-hello", "forwarded_by_session", name[:], func(output []byte, s sent) error {
			return checkServer(output, s, serverAddress(sessionServer), identification)
		}),
		first("session-hello-new", "forwarded_new", nil, checkCookie),
		{name: "session-cookie", program: lb, cell: established, verdict: "forwarded_by_cookie", place: place, check: checkCookie},
	}
}

// answeredSYN is a SYN that the load balancer answers.
func (r *rig) answeredSYN(name string, vip netip.Addr) subject {
	syn := wrapper.Cell{Growth: synACKLength - wrapper.FrameLength}
	copy(syn.Frame[:], segment(vip, segmentSYN, synOptions, nil)) // the rest is padding: a frame that comes again over veth is as short as its answer
	return subject{name: name, program: r.lb.Program(), cell: syn, verdict: "answered_syn", place: r.places[vip.String()],
		check: func(output []byte, s sent) error { return r.checkSYNACK(vip, output, s) }}
}

// answers are those to the SYNs of what a connection begins with.
func (r *rig) answers(vip netip.Addr) *wrapper.Answered {
	return &wrapper.Answered{Key: plan.SYNCookieKey(&r.fleet.Keys, vip), Options: reported}
}

// asOfNow has the SYN that is answered come at the time of a measurement: cookies in sequence numbers age.
func asOfNow(answered *wrapper.Answered) func() error {
	return func() error {
		answered.Seconds = uint64(time.Now().Unix())
		return nil
	}
}

// acknowledgement is the segment between SYN and hello, which the load balancer drops.
func (r *rig) acknowledgement() subject {
	cell := carryingCell(&r.fleet, sessionVIP, segmentACK)
	copy(cell.Frame[:], segment(sessionVIP, segmentACK, ackOptions, nil)) // the rest is padding
	cell.Answered = r.answers(sessionVIP)
	return subject{name: "session-ack", program: r.lb.Program(), lb: r.lb, cell: cell, keeps: true, action: xdpDrop, verdict: "dropped_handshake",
		place: r.places[sessionVIP.String()], check: checkUnchanged, prepare: asOfNow(cell.Answered)}
}

// clientHello is a record that shows a ticket that begins so; nil: none.
func clientHello(shown []byte) []byte {
	field := func(lengthOf int, content ...byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(content)))[4-lengthOf:], content...)
	}
	var extensions []byte
	extend := func(kind uint16, content []byte) {
		extensions = append(binary.BigEndian.AppendUint16(extensions, kind), field(2, content...)...)
	}
	for _, e := range helloExtensions {
		extend(e[0], make([]byte, e[1]))
	}
	if shown != nil {
		identity := append(field(2, append(slices.Clone(shown), make([]byte, ticketLength-len(shown))...)...), 0, 0, 0, 1)
		extend(extensionShown, append(field(2, identity...), field(2, field(1, make([]byte, 32)...)...)...))
	}
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), field(1, make([]byte, 32)...), field(2, make([]byte, 6)...), field(1, 0), field(2, extensions...))
	record := append([]byte{22, 3, 1}, field(2, append([]byte{1}, field(3, body...)...)...)...)
	if name, source, outcome := clienthello.Read(record); outcome != clienthello.Complete || (source == clienthello.ByPSK) != (shown != nil) ||
		shown != nil && string(name[:]) != string(shown) {
		panic("a measured hello cannot be read")
	}
	return record
}

// told are the options of the frames' SYNs.
var reported = syncookie.Options{MSS: 1460, WindowScale: 7, SACK: true}

// checkSYNACK: the answer's timestamp names one of the servers, its sequence number is a cookie of that and of the SYN, and all else is as it must be.
func (r *rig) checkSYNACK(vip netip.Addr, output []byte, s sent) error {
	if len(output) != synACKLength {
		return fmt.Errorf("the answer is %d bytes", len(output))
	}
	service, client := r.fleet.Service(vip.String()), s.cell.Client(s.flow)
	number, timestamp := binary.BigEndian.Uint32(output[38:]), binary.BigEndian.Uint32(output[66:])
	hash := cookie.FlowHash(cookie.ServiceKey(r.fleet.Keys.Cookie[cookieEpoch], vip, model.ProtocolTCP), client, servicePort)
	fallback := syncookie.Fallback(service.CookieBits, timestamp, hash)
	if fallback < 1 || fallback > servers || syncookie.Timestamp(service.CookieBits, cookieEpoch, fallback, hash) != timestamp {
		return fmt.Errorf("the answer's timestamp %#x names server %d", timestamp, fallback)
	}
	flow := syncookie.Flow{Client: client, ServicePort: servicePort, Sequence: 1, Timestamp: timestamp}
	if o, ok := syncookie.Read(plan.SYNCookieKey(&r.fleet.Keys, vip), flow, number, uint64(time.Now().Unix())); !ok || o != reported {
		return fmt.Errorf("the answer's sequence number %#x is of %+v", number, o)
	}
	mss := 1500 - plan.Overhead(service, serverAddress(fallback)) - 40
	options := slices.Concat([]byte{2, 4, byte(mss >> 8), byte(mss), 1, 3, 3, plan.SessionScale, 4, 2, 8, 10}, output[66:70], []byte{0, 0, 0, 1})
	ip := &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolTCP, SrcIP: vip.AsSlice(), DstIP: net.IP(client.Addr().AsSlice())}
	tcp := &layers.TCP{SrcPort: servicePort, DstPort: layers.TCPPort(client.Port()), Seq: number, Ack: 2, SYN: true, ACK: true, Window: 64240, Options: tcpOptions(options)}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		return err
	}
	want := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: ourMAC, DstMAC: clientMAC, EthernetType: layers.EthernetTypeIPv4}, ip, tcp)
	if err != nil {
		return fmt.Errorf("build the expected answer: %w", err)
	}
	return checkSame(output, want.Bytes())
}
