package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/aestables"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
)

// QUICConfig is struct quic_config: how the ids of an epoch are read.
type QUICConfig struct {
	Key                 aestables.Keys
	LeftMask, RightMask [3]uint32
	Algorithm           uint8 // 0: none
	Length              uint8
	ServerBytes         uint8
	Half                uint8
}

// QUICGroups is how many groups of configs there is room for: old and new stand side by side. Group 0 is that of services that have none.
const QUICGroups = 2*(model.MaxQUICServices+model.MaxSessionServices) + 1

// QUICConfigs are those of a service, by the first three bits of an id.
type QUICConfigs [model.QUICConfigs + 1]QUICConfig

// QUICConfigNumber is the config of an epoch. Two epochs that live side by side have different ones.
func QUICConfigNumber(epoch uint32) uint8 { return uint8(epoch % model.QUICConfigs) }

// ConnectionIDKey is that of the ids of a service, of an epoch's cookie key. It is that of the vip, as for cookies: services may be renamed, split and
// merged, and ports may move between them, under living connections.
func ConnectionIDKey(fleet [16]byte, vip netip.Addr) [16]byte {
	return [16]byte(cookie.Derive(fleet, cookie.ForConnectionIDs, vip, 0, 16))
}

// quicConfigs is nil for services without connection ids.
func quicConfigs(keys *model.Keys, s *model.Service) *QUICConfigs {
	if s.Affinity != model.AffinityQUIC {
		return nil
	}
	q := &s.QUIC
	plain := int(q.ServerIDLength) + int(q.NonceLength)
	configs := new(QUICConfigs)
	for epoch, fleet := range keys.Cookie {
		c := &configs[QUICConfigNumber(epoch)]
		*c = QUICConfig{Algorithm: uint8(q.Algorithm) + 1, Length: uint8(1 + plain), ServerBytes: q.ServerIDLength}
		key := ConnectionIDKey(fleet, s.VIP)
		switch q.Algorithm {
		case model.QUICSinglePass:
			c.Key = aestables.DecryptKeys(key)
		case model.QUICFourPass:
			c.Key = aestables.EncryptKeys(key)
			c.layHalves(plain)
		}
	}
	return configs
}

// layHalves says which bits of the two words of 96 bits are the halves of a text of so many bytes (draft-ietf-quic-load-balancers-21 5.4.1).
func (c *QUICConfig) layHalves(plain int) {
	half := (plain + 1) / 2
	var left, right [12]byte
	for i := range half {
		left[i], right[i] = 0xff, 0xff
	}
	if plain%2 == 1 { // the byte in the middle belongs to both, by four bits
		left[half-1], right[0] = 0xf0, 0x0f
	}
	for i := range 3 {
		c.LeftMask[i], c.RightMask[i] = binary.BigEndian.Uint32(left[4*i:]), binary.BigEndian.Uint32(right[4*i:])
	}
	c.Half = uint8(half)
}

// publishConfigs writes the configs of a service, those of connection ids or those of sessions, to a place of their own, if they have changed.
func (u *update) publishConfigs(p *published, img image, fresh bool) (moved bool, err error) {
	t := u.tables
	if !fresh && equalConfigs(p.image.configs, img.configs) && equalConfigs(p.image.session, img.session) {
		return false, nil
	}
	var to span
	if img.configs != nil || img.session != nil {
		if to, err = t.configs.take(1); err != nil {
			return false, err
		}
	}
	if img.configs != nil {
		u.add(WriteQUIC{to.base, img.configs})
	}
	if img.session != nil {
		u.add(WriteSession{to.base, img.session})
	}
	t.configs.give(p.configs)
	p.configs = to
	return true, nil
}

func equalConfigs[C comparable](a, b *C) bool {
	return a == b || a != nil && b != nil && *a == *b
}
