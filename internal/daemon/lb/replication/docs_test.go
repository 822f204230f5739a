package replication

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/doctest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestDocsShowTheBytesOfAMessage(t *testing.T) {
	hosts := newRing(t, 4, 2)
	h := hosts[1]
	c := connectionOf(h, viewOf(1, 2, 1, 2, 3, 4), model.ProtocolUDP, 2)
	out := h.run(c.frame(0))
	for tries := 0; out.message.Proposed != 2 && tries < 100; tries++ { // turns begin anywhere
		out = h.run(c.frame(0))
	}
	if out.message.Kind != peermessage.Write {
		t.Fatalf("%+v", out)
	}
	var b strings.Builder
	line := func(name string, bytes []byte, format string, values ...any) {
		var words []string
		for at := 0; at < len(bytes); at += 4 {
			words = append(words, fmt.Sprintf("%x", bytes[at:min(at+4, len(bytes))]))
		}
		fmt.Fprintf(&b, "%-5s %-45s %s\n", name, strings.Join(words, " "), fmt.Sprintf(format, values...))
	}
	rest := out.frame[14:]
	line("ip4", rest[:20], "%s -> %s, protocol 17, %d bytes", nodeAddress(1), nodeAddress(out.to), binary.BigEndian.Uint16(rest[2:]))
	line("udp", rest[20:28], "%d -> %d, %d bytes", binary.BigEndian.Uint16(rest[20:]), binary.BigEndian.Uint16(rest[22:]), binary.BigEndian.Uint16(rest[24:]))
	line("gue", rest[28:32], "%d words follow, then protocol %d", rest[28]&31, rest[29])
	m := out.message
	line("kind", rest[32:36], "type 2, Write, parity of epoch 3, hop %d", m.Hops)
	line("nodes", rest[36:40], "forwarder %d, last %d", m.Forwarder, m.Last)
	line("ids", rest[40:44], "owner %d, proposed %d", m.Owner, m.Proposed)
	line("chain", rest[44:48], "since version %d", m.Chain)
	line("mac", rest[48:56], "%016x", binary.LittleEndian.Uint64(rest[48:]))
	line("ip4", rest[56:76], "%s -> %s, protocol 17", c.client.Addr(), c.service.Addr())
	line("udp", rest[76:84], "%d -> %d", c.client.Port(), c.service.Port())
	e0, e1 := plan.EntryKey(h.want.Keys.Placement)
	p0, p1 := plan.PeerKey(h.want.Keys.Cookie[3])
	fmt.Fprintf(&b, `
placement key        %x
key of connections   k0 = %016x   k1 = %016x
the connection's     %016x
fleet key, epoch 3   %x
key of messages      k0 = %016x   k1 = %016x
`, h.want.Keys.Placement, e0, e1, uint64(c.key(&h.want.Keys)), h.want.Keys.Cookie[3], p0, p1)
	doctest.Show(t, "message", map[string]string{"write": "```\n" + b.String() + "```\n"}, "../../../../docs/design/connection.md")
}
