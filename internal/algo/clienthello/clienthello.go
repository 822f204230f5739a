// Package clienthello finds in the first bytes of a TLS connection what names its session (RFC 8446 4.1.2, 4.2.11; RFC 5077; RFC 5246 7.4.1.2).
// bpf/lb/packet/client_hello.h does the same.
package clienthello

import "encoding/binary"

// NameLength is how much of what names a session is read: servers put the sealed id there.
const NameLength = 16

// Specification constants (RFC 8446 4, 5.1).
const (
	contentHandshake   = 22
	messageClientHello = 1
	recordHeader       = 5
	messageHeader      = 4
	randomLength       = 32
	sessionIDMost      = 32
	extensionTicket    = 35
	extensionPSK       = 41
)

// Implementation constants: of bpf/lb/packet/client_hello.h.
const (
	MostExtensions = 48
	MostBytes      = 4096 // of a hello, as far as it is looked at
)

// Outcome is how far reading came.
type Outcome uint8

// What the bytes are.
const (
	NotTLS    Outcome = iota // other data, or a hello that its records cut into pieces
	More                     // the beginning of a hello
	Malformed                // its lengths contradict each other, or it is longer than anybody's
	Complete                 // all that matters is there
)

// Source is what named the session.
type Source uint8

// From the one that is not there to the one that is looked at first.
const (
	NoSession Source = iota
	BySessionID
	ByTicket // of TLS 1.2
	ByPSK    // of TLS 1.3
)

// Read looks for the session in the first bytes of a connection. name: what its server may have sealed there; of several identities the first one, for which
// a client has keys to send early data.
func Read(payload []byte) (name [NameLength]byte, source Source, outcome Outcome) {
	r := reader{payload: payload[:min(len(payload), MostBytes)], cut: len(payload) > MostBytes}
	r.read()
	return r.name, r.source, r.outcome
}

type reader struct {
	payload []byte
	cut     bool // there is more that nobody looks at
	name    [NameLength]byte
	source  Source
	outcome Outcome
}

// has says whether the bytes up to end are there; if not, what that means.
func (r *reader) has(end int) bool {
	if end <= len(r.payload) {
		return true
	}
	if r.outcome = More; r.cut || end > MostBytes {
		r.outcome = Malformed
	}
	return false
}

func (r *reader) word(at int) int { return int(binary.BigEndian.Uint16(r.payload[at:])) }

func (r *reader) take(at int, source Source) {
	copy(r.name[:], r.payload[at:])
	r.source = source
}

func (r *reader) read() {
	const session = recordHeader + messageHeader + 2 + randomLength
	if len(r.payload) > 0 && r.payload[0] != contentHandshake {
		return
	}
	if !r.has(session + 1) {
		return
	}
	record := recordHeader + r.word(3)
	message := recordHeader + messageHeader + int(r.payload[6])<<16 + r.word(7)
	if r.payload[1] != 3 || r.payload[5] != messageClientHello || message > record {
		return
	}
	length := int(r.payload[session])
	if length > sessionIDMost {
		r.outcome = Malformed
		return
	}
	at := session + 1
	if length == sessionIDMost {
		if !r.has(at + NameLength) {
			return
		}
		r.take(at, BySessionID)
	}
	if at += length; !r.has(at + 2) { // cipher suites
		return
	}
	if at += 2 + r.word(at); !r.has(at + 1) { // compression methods
		return
	}
	at += 1 + int(r.payload[at])
	if at == message { // no extensions (TLS 1.2)
		r.outcome = Complete
		return
	}
	r.extensions(at+2, message)
}

// extensions reads what lies between at and end.
func (r *reader) extensions(at, end int) {
	for range MostExtensions {
		if at == end {
			r.outcome = Complete
			return
		}
		if at+4 > end {
			r.outcome = Malformed
			return
		}
		if !r.has(at + 4) {
			return
		}
		kind, length := r.word(at), r.word(at+2)
		at += 4
		if kind == extensionPSK { // the last one (RFC 8446 4.2.11): length of the list, length of the first identity, identity
			if !r.has(at + 4 + NameLength) {
				return
			}
			if r.outcome = Complete; r.word(at+2) >= NameLength {
				r.take(at+4, ByPSK)
			}
			return
		}
		if kind == extensionTicket && length >= NameLength {
			if !r.has(at + NameLength) {
				return
			}
			r.take(at, ByTicket)
		}
		at += length
	}
	r.outcome = Malformed
}
