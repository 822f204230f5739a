package lb

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// formatsOfTunnels shows the encapsulations with next hops of one packet that carries no cookie.
func formatsOfTunnels(t *testing.T) map[string]string {
	blocks := map[string]string{}
	for _, one := range []struct {
		name    string
		ipv6    bool
		forward model.Forward
	}{
		{"gue-stops", false, model.ForwardIPIP},
		{"srv6-segments", true, model.ForwardSRv6},
	} {
		w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
			withServers(one.ipv6, 1)(s)
			s.Forward = one.forward
		}))
		for id := range uint16(2) { // the slot moves to server 2 and then to 3
			w.update(func(want *plan.Want) {
				s := service(want, "web")
				s.Servers[id].State = model.StateDraining
				s.Servers = append(s.Servers, serverOf(id+2, one.ipv6))
				s.ApplyDefaults()
			})
		}
		f := flowTo(vip4, 80, 1)
		got, _ := w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
		blocks[one.name] = dissect(got.frame)
	}
	return blocks
}

// walkOfAnAnswer sends an answer of a return: through server to its client, and the client's next packet back.
func walkOfAnAnswer(t *testing.T, space docSpace) map[string]string {
	w := newWorld(t, throughService(vip4, model.ForwardNAT, 8080))
	f := flowTo(vip4, 80, 1)
	answer := w.answered(f, 2, timestamps(clockSYNACK, clockClient))
	marked := space.run(w.lb.Program(), answer)
	_, wire, _ := findTimestamp(marked[14+20+20 : 14+20+32])
	w.setClock(2, clockSYNACK+20)
	echo := f.frame(f.tcp(ack, timestamps(clockClient+12, wire), nil))
	restored := space.run(w.lb.Program(), echo)
	if _, _, have := findTimestamp(restored[14+20+20 : 14+20+32]); wire>>8 != clockSYNACK&0xffffff || have != clockSYNACK {
		t.Fatalf("marked with %08x, restored %08x", wire, have)
	}
	return map[string]string{"through-answer": dissect(answer), "through-marked": dissect(marked), "through-restored": dissect(restored)}
}

// formatsOfAnswers shows what the load balancer answers itself.
func formatsOfAnswers(t *testing.T) map[string]string {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	got, _ := w.checkVerdict(f.frame(f.tcp(ack, timestamps(1, 0), make([]byte, 1560))), lbVerdictANSWERED_TOO_BIG)
	return map[string]string{"too-big-4": dissect(got.frame)}
}

// A dump is a frame in hexadecimal, a line for each header.
type dump struct{ lines strings.Builder }

func (d *dump) line(name string, b []byte, format string, args ...any) {
	const width = 20 // bytes
	for at := 0; at < len(b) || at == 0; at += width {
		var hex strings.Builder
		for i, octet := range b[at:min(at+width, len(b))] {
			if i > 0 && i%4 == 0 {
				hex.WriteByte(' ')
			}
			fmt.Fprintf(&hex, "%02x", octet)
		}
		text := fmt.Sprintf("%-5s %-46s %s", name, hex.String(), fmt.Sprintf(format, args...))
		d.lines.WriteString(strings.TrimRight(text, " ") + "\n")
		name, format, args = "", "", nil
	}
}

// dissect shows the packet in a frame. It reads well-formed frames only.
func dissect(frame []byte) string {
	var d dump
	d.ip(frame[14:])
	return d.lines.String()
}

func (d *dump) ip(b []byte) {
	header, protocol, length := 20, b[9], int(binary.BigEndian.Uint16(b[2:]))
	from, to := addressIn(b[12:16]), addressIn(b[16:20])
	if b[0]>>4 == 6 {
		header, protocol, length = 40, b[6], 40+int(binary.BigEndian.Uint16(b[4:]))
		from, to = addressIn(b[8:24]), addressIn(b[24:40])
	}
	d.line(fmt.Sprintf("ip%d", b[0]>>4), b[:header], "%s -> %s, protocol %d, %d bytes", from, to, protocol, length)
	switch rest := b[header:]; protocol {
	case 4, 41:
		d.ip(rest)
	case 6:
		d.tcp(rest)
	case 17:
		d.gue(rest, b[0]>>4 == 6)
	case 43:
		d.srh(rest)
	case 1, 58:
		d.line("icmp", rest[:8], "type %d, code %d", rest[0], rest[1])
		d.line("data", rest[8:min(len(rest), 28)], "%d bytes", len(rest)-8)
	}
}

func (d *dump) tcp(b []byte) {
	var flags []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if b[13]&(1<<i) != 0 {
			flags = append(flags, name)
		}
	}
	d.line("tcp", b[:20], "%d -> %d %s", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), strings.Join(flags, " "))
	header := int(b[12]>>4) * 4
	if header > 20 {
		_, value, echo := findTimestamp(b[20:header])
		d.line("opt", b[20:header], "TSval 0x%08x  TSecr 0x%08x", value, echo)
	}
	if len(b) > header {
		d.line("data", b[header:], "%q", b[header:])
	}
}

func (d *dump) gue(b []byte, ipv6 bool) {
	d.line("udp", b[:8], "%d -> %d, %d bytes", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[4:]))
	words := int(b[8] & 31)
	d.line("gue", b[8:12], "%d words follow, then protocol %d", words, b[9])
	if words > 0 {
		stops, size := b[12:12+4*words], 4
		if ipv6 {
			size = 16
		}
		var addresses []string
		for i := range int(stops[2]) {
			addresses = append(addresses, addressIn(stops[4+i*size:][:size]).String())
		}
		d.line("stops", stops, "next %d of %d: %s", stops[1], stops[2], strings.Join(addresses, ", "))
	}
	d.ip(b[12+4*words:])
}

func (d *dump) srh(b []byte) {
	count := int(b[4]) + 1
	d.line("srh", b[:8], "%d eights follow, then protocol %d; segment %d of 0 to %d", b[1], b[0], b[3], b[4])
	for i := range count {
		segment := b[8+16*i:][:16]
		d.line("", segment, "%d: %s", i, addressIn(segment))
	}
	d.ip(b[8+16*count:])
}
