// Package hellotest reads from a ClientHello what names a session, for tests (RFC 8446 sections 4.1.2 and 4.2.11, RFC 5077 section 3.2).
package hellotest

import (
	"encoding/binary"
	"errors"
)

// A Hello has what a client shows of the session that it resumes; what it does not show is empty.
type Hello struct {
	SessionID []byte // TLS 1.3 and tickets need one, too: then it names nothing
	Ticket    []byte // of TLS 1.2
	Identity  []byte // of TLS 1.3: the first pre-shared key's
}

// Session returns what load balancers go by.
func (h *Hello) Session() []byte {
	for _, name := range [][]byte{h.Identity, h.Ticket} {
		if len(name) > 0 {
			return name
		}
	}
	return h.SessionID
}

const (
	record, clientHello         = 22, 1
	sessionTicket, preSharedKey = 35, 41
)

var errShort = errors.New("hello ends too early, or is none")

// reader takes fields from the front; none are left after the first that is not there.
type reader struct {
	bytes []byte
	err   error
}

func (r *reader) take(n int) []byte {
	if n > len(r.bytes) {
		r.bytes, r.err = nil, errShort
		return make([]byte, n)
	}
	taken := r.bytes[:n]
	r.bytes = r.bytes[n:]
	return taken
}

// vector takes a length of so many bytes, and what follows it.
func (r *reader) vector(size int) []byte {
	var length [4]byte
	copy(length[4-size:], r.take(size))
	return r.take(int(binary.BigEndian.Uint32(length[:])))
}

// Read reads the first bytes that a client has sent: records, the first of which begin with a hello.
func Read(sent []byte) (*Hello, error) {
	var message []byte
	for records := (reader{bytes: sent}); len(records.bytes) > 0 && records.bytes[0] == record; {
		records.take(3)
		message = append(message, records.vector(2)...)
	}
	r := reader{bytes: message}
	if r.take(1)[0] != clientHello {
		return nil, errShort
	}
	r.bytes = r.vector(3)
	r.take(2 + 32) // version, random
	h := &Hello{SessionID: r.vector(1)}
	r.vector(2) // cipher suites
	r.vector(1) // compression methods
	for extensions := (reader{bytes: r.vector(2), err: r.err}); len(extensions.bytes) > 0 || extensions.err != nil; {
		if extensions.err != nil {
			return nil, extensions.err
		}
		kind := binary.BigEndian.Uint16(extensions.take(2))
		body := reader{bytes: extensions.vector(2)}
		switch kind {
		case sessionTicket:
			h.Ticket = body.bytes
		case preSharedKey:
			identities := reader{bytes: body.vector(2)}
			h.Identity = identities.vector(2)
			if identities.err != nil {
				return nil, identities.err
			}
		}
	}
	return h, nil
}
