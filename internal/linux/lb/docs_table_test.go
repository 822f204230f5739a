package lb

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// walkOfATable sends the first packet after a handshake, and the one after it, through a load balancer of the second tier.
func walkOfATable(t *testing.T) map[string]string {
	const clock = 0x2345
	var id, node uint16 = 42, 3
	w := newWorld(t)
	w.update(func(want *plan.Want) {
		want.Tier = plan.Tier{Tier: model.TierSecond, ID: node}
		want.Services = []plan.Service{{Service: serviceOf("web", vip4, func(s *model.Service) {
			s.Affinity, s.CookieBits = model.AffinityTable, 16
			s.Table = model.Table{Entries: 1024, IndexBits: 6, NodeBits: 3}
			withServers(false, 7, id)(s)
		})}}
	})
	s := w.want.Services[0].Service
	layout := conntable.Layout{NodeBits: s.Table.NodeBits, IndexBits: s.Table.IndexBits, IDBits: s.IDBits()}
	client, service := netip.AddrPortFrom(client4, 33686), netip.AddrPortFrom(vip4, 443)
	key := cookie.ServiceKey(w.want.Keys.Cookie[1], s.VIP, s.Protocol)
	hash := cookie.FlowHash(key, client, service.Port())
	wire := uint32(clock<<16) | uint32(cookie.Encode(s.CookieBits, 1, id, hash))
	packet := func(clock, echo uint32, payload string) []byte {
		return ethernet(0, ipPacket(client.Addr(), s.VIP, 6, segment(client, service, 1001, 5001, psh|ack, timestamps(clock, echo), []byte(payload))))
	}

	first := packet(clockClient, wire, "GET / ")
	sent := w.run(first)
	if sent.verdict != lbVerdictFORWARDED_ADDED {
		t.Fatalf("verdict %s", verdictNames[sent.verdict])
	}
	told := binary.BigEndian.Uint32(sent.frame[14+20+20+20+8:])
	plain := uint16((uint64(told) ^ hash) & 0x7fff)
	carriedNode, index, carriedID := layout.Split(plain)
	if carriedNode != node || carriedID != id || index == 0 || told>>15 != wire>>15 {
		t.Fatalf("the server is told %08x: node %d, index %d, id %d", told, carriedNode, index, carriedID)
	}
	blocks := map[string]string{"table-first": dissect(first)}
	placed := cookie.ServiceKey(w.want.Keys.Placement, s.VIP, s.Protocol)
	at := conntable.Hash(placed.K0, placed.K1, client, service.Port())
	partitions := conntable.Partitions(conntable.Blocks(s.Table.Entries), s.Table.IndexBits)
	blocks["table-tag"] = fmt.Sprintf(`TSecr                0x%08x
plain                0x%04x ^ 0x%04x = 0x%04x   node 0, index 0, id %d: no entry yet
table hash           %016x   keyed by the placement key
partition            0x%08x * %d >> 32 = %d
index                %d, the lowest that is free there
plain, from now on   0x%04x = node %d << 12 | index %d << 6 | id %d
TSecr, to the server 0x%08x
verdict              %s
`, wire, wire&0x7fff, hash&0x7fff, (uint64(wire)^hash)&0x7fff, id, at, at>>32, partitions, conntable.PartitionOf(at, partitions), index,
		plain, node, index, id, told, strings.ToLower(verdictNames[sent.verdict]))

	if sent = w.run(packet(clockClient+9, told+0x50000, "x")); sent.verdict != lbVerdictFORWARDED_BY_TABLE {
		t.Fatalf("verdict %s", verdictNames[sent.verdict])
	}
	return blocks
}
