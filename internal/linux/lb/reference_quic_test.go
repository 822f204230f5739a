// Reference of bpf/lb/affinity/quic.h: what a connection id says, and where its connection began.
package lb

import (
	"encoding/binary"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// refStarting is a place of a connection that begins.
type refStarting struct {
	hash uint64
	id   uint16
}

// quicConfig is how ids of an epoch are made.
func quicConfig(s *model.Service, epoch uint32, fleet [16]byte) quiclb.Config {
	algorithms := map[model.QUICAlgorithm]quiclb.Algorithm{model.QUICSinglePass: quiclb.SinglePass, model.QUICFourPass: quiclb.FourPass, model.QUICPlain: quiclb.Plain}
	return quiclb.Config{ID: uint8(epoch % 7), Algorithm: algorithms[s.QUIC.Algorithm], Key: plan.ConnectionIDKey(fleet, s.VIP),
		ServerIDLength: int(s.QUIC.ServerIDLength), NonceLength: int(s.QUIC.NonceLength)}
}

// connectionID is where a datagram has its destination's connection id, or a quoted one its source's: RFC 8999. nil: nowhere.
func connectionID(datagram []byte, quoted bool) (id []byte, long bool) {
	if len(datagram) < 6 {
		return nil, false
	}
	if datagram[0]&0x80 == 0 {
		if quoted {
			return nil, false
		}
		return datagram[1:], false
	}
	length, rest := int(datagram[5]), datagram[6:]
	if quoted {
		if length > 20 || len(rest) <= length {
			return nil, false
		}
		length, rest = int(rest[length]), rest[length+1:]
	}
	if len(rest) < 17 { // no packet ends so early
		return nil, false
	}
	if length > 20 { // none that QUIC has (RFC 9000 17.2)
		return nil, true
	}
	return rest[:min(length, len(rest))], true
}

func (r *reference) ladderQUIC(s *plan.Service, p *refPacket, quoted bool) refDecision {
	datagram := p.ip[p.l4+8:]
	id, long := connectionID(datagram, quoted)
	if len(id) < 17 && !long {
		return r.place(s, p, lbVerdictFORWARDED_BAD_COOKIE)
	}
	for epoch, fleet := range r.want.Keys.Cookie {
		c := quicConfig(&s.Service, epoch, fleet)
		if !long {
			id = datagram[1:][:min(c.Length(), len(datagram)-1)]
		}
		if long && len(id) > c.Length() && len(id) <= 20 { // servers may append bytes
			id = id[:c.Length()]
		}
		server, err := c.Decode(id)
		if err != nil {
			continue
		}
		number := binary.BigEndian.Uint64(append(make([]byte, 8-len(server)), server...))
		if number < 1<<16 && serverIn(s, uint16(number)) != nil {
			verdict := lbVerdictFORWARDED_BY_COOKIE
			if epoch != r.want.Keys.Current {
				verdict = lbVerdictFORWARDED_BY_OLDER_KEY
			}
			return refDecision{verdict: verdict, ids: []uint16{uint16(number)}}
		}
	}
	if quoted || !long || datagram[5] < 8 {
		return r.place(s, p, lbVerdictFORWARDED_BAD_COOKIE)
	}
	hash := r.startingHash(s, p)
	if known := r.starting[uint16(hash)]; known.hash == hash>>16 && serverIn(s, known.id) != nil {
		return refDecision{verdict: lbVerdictFORWARDED_STARTING, ids: []uint16{known.id}}
	}
	d := r.ladderNew(s, p)
	d.learn = func(ids []uint16) { r.starting[uint16(hash)] = refStarting{hash >> 16, ids[0]} }
	return d
}

// startingHash is what is known of a connection whose client has drawn an id.
func (r *reference) startingHash(s *plan.Service, p *refPacket) uint64 {
	key := cookie.ServiceKey(r.want.Keys.Placement, s.VIP, s.Protocol)
	message := append(append([]byte(nil), p.ip[p.l4+8:][7:15]...), make([]byte, 16)...)
	copy(message[8:], p.source.AsSlice())
	message = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(message, p.sport), p.dport)
	return siphash.Sum13(key.K0, key.K1, message)
}
