// Package sessionid seals the id of a server into the 16 bytes that a client shows when it resumes a TLS session: the first ones of a session ticket (RFC 5077
// section 4, "key_name") and of a session id. Any load balancer with the key reads them; nobody else learns the id, or that two names are of one server.
// preload/session_id.h computes the same bytes; test/golden/sessionid.json holds both to it.
//
// A name is nonce (8 bytes) | tag (6) | hidden (2), all big endian:
//
//	tag    = the high 48 bits of SipHash-2-4 under Key.Tag of nonce | id
//	hidden = id XOR the low 16 bits of SipHash-2-4 under Key.Hide of nonce | tag
//
// This is the construction of Rogaway and Shrimpton, "Deterministic Authenticated-Encryption" (Eurocrypt 2006, section 4: SIV), with the
// nonce as header: a nonce that is drawn twice tells that the ids are equal, and nothing more.
package sessionid

import (
	"encoding/binary"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Length of a name, in bytes.
const Length = 16

// Key is the two keys of an epoch: Tag tells forged names from ours, Hide hides the id.
type Key struct{ Tag, Hide cookie.Key }

// Load returns the key that 32 bytes of a file are.
func Load(key [32]byte) Key {
	return Key{Tag: cookie.Load([16]byte(key[:16])), Hide: cookie.Load([16]byte(key[16:]))}
}

// Seal returns a name of a server. The caller draws a nonce for each.
func Seal(key Key, nonce uint64, id uint16) (name [Length]byte) {
	binary.BigEndian.PutUint64(name[:], nonce)
	binary.BigEndian.PutUint64(name[8:], key.tag(nonce, id)<<16)
	binary.BigEndian.PutUint16(name[14:], id^key.pad(name))
	return name
}

// Open returns the id of the server that a name is of. ok is false if the name was not sealed under key; 0 is nobody's id.
func Open(key Key, name [Length]byte) (id uint16, ok bool) {
	id = binary.BigEndian.Uint16(name[14:]) ^ key.pad(name)
	if id == 0 || key.tag(binary.BigEndian.Uint64(name[:]), id) != binary.BigEndian.Uint64(name[8:])>>16 {
		return 0, false
	}
	return id, true
}

func (k Key) tag(nonce uint64, id uint16) uint64 {
	var message [10]byte
	binary.BigEndian.PutUint64(message[:], nonce)
	binary.BigEndian.PutUint16(message[8:], id)
	return siphash.Sum24(k.Tag.K0, k.Tag.K1, message[:]) >> 16
}

// pad is what hides the id of a name with nonce and tag.
func (k Key) pad(name [Length]byte) uint16 {
	return uint16(siphash.Sum24(k.Hide.K0, k.Hide.K1, name[:14]))
}
