// Package sessionticket makes TLS session tickets by which Ballast load balancers find the server that issued them. It is for applications that use crypto/tls
// and serve a service with `session: tls`: every tls.Config by which they accept connections must be configured here, those that GetConfigForClient returns
// as well. Keys set by SetSessionTicketKeys are not used any more.
//
//	tickets, err := sessionticket.Open("/run/ballast/tickets/default/web.json")
//	tickets.Configure(config)
//
// `ballast agent` writes what a server needs to a file, and replaces it when keys change; Tickets follow it. A ticket is a name (internal/algo/sessionid: the
// sealed id of its server) and the encrypted session. All servers of a service share the key of sessions: one resumes what another has issued, and gives
// the client a ticket of its own. crypto/tls sends a new ticket in every connection, with TLS 1.2 in resumed ones, too: no ticket needs to be seen twice.
package sessionticket

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/pkg/internal/agentfile"
)

const keyLength = 32

// A File is what `ballast agent` writes for one service. Who can read it can issue tickets in the name of its server, tell which server a ticket names, and
// decrypt the sessions of all servers. The keys before are those of another epoch, or empty: tickets by them are read, and no more made. Where controllers give
// the keys of tickets, TicketKeys lists them, first TicketKey: names and tickets have epochs of their own then, and tickets by each of the keys are read.
type File struct {
	Service         string `json:"service"`
	ServerID        uint16 `json:"server_id"` // not 0
	IDKey           Secret `json:"id_key"`    // 32 bytes, of the names of all servers
	TicketKey       Secret `json:"ticket_key"`
	IDKeyBefore     Secret `json:"id_key_before"`
	TicketKeyBefore Secret `json:"ticket_key_before"`

	TicketKeys []Secret `json:"ticket_keys,omitempty"`
}

// Secret is bytes that are hexadecimal digits in JSON. It is printed without them.
type Secret = agentfile.Secret

// epoch is the keys of one.
type epoch struct {
	names    sessionid.Key
	sessions [][]byte // that tickets of such a name may be by; they are made by the first
}

// followed is a file, and its epochs: the one that tickets are made by first.
type followed struct {
	File
	epochs []epoch
}

func (f *followed) check(*followed) error {
	if f.ServerID == 0 {
		return errors.New("server_id is 0, which is no server's")
	}
	pairs := [][2]Secret{{f.IDKey, f.TicketKey}}
	if len(f.IDKeyBefore) != 0 || len(f.TicketKeyBefore) != 0 {
		pairs = append(pairs, [2]Secret{f.IDKeyBefore, f.TicketKeyBefore})
	}
	for i, pair := range pairs {
		if len(pair[0]) != keyLength || len(pair[1]) != keyLength {
			return fmt.Errorf("%s and %s have %d and %d bytes, not %d", []string{"id_key", "id_key_before"}[i], []string{"ticket_key", "ticket_key_before"}[i],
				len(pair[0]), len(pair[1]), keyLength)
		}
		e := epoch{sessionid.Load([keyLength]byte(pair[0])), [][]byte{pair[1]}}
		for _, key := range f.TicketKeys {
			if len(key) != keyLength {
				return fmt.Errorf("one of ticket_keys has %d bytes, not %d", len(key), keyLength)
			}
			if !bytes.Equal(key, pair[1]) {
				e.sessions = append(e.sessions, key)
			}
		}
		f.epochs = append(f.epochs, e)
	}
	return nil
}

// Tickets makes and reads tickets. It is safe for concurrent use.
type Tickets struct {
	path string
	file *agentfile.Follower[followed]
}

// Open reads the agent's file. An error: it is not there or not right.
func Open(path string) (*Tickets, error) {
	file, err := agentfile.Open(path, (*followed).check)
	if err != nil {
		return nil, err
	}
	return &Tickets{path: path, file: file}, nil
}

// Configure makes connections that are accepted by config resume by tickets that name this server.
func (t *Tickets) Configure(config *tls.Config) {
	config.WrapSession, config.UnwrapSession = t.wrap, t.unwrap
}

// Err says why the file as it is now is not followed, and tickets are made by what was read before; nil: it is followed.
func (t *Tickets) Err() error {
	if err := t.file.Err(); err != nil {
		return errors.Join(errors.New("session tickets are made by an older file"), err)
	}
	return nil
}

// String names the file, and hides what is in it.
func (t *Tickets) String() string { return "session tickets by " + t.path }

// GoString is String.
func (t *Tickets) GoString() string { return t.String() }

func (t *Tickets) wrap(_ tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
	plain, err := session.Bytes()
	if err != nil {
		return nil, err
	}
	file := t.file.Current()
	var nonce [8]byte
	rand.Read(nonce[:])
	name := sessionid.Seal(file.epochs[0].names, binary.BigEndian.Uint64(nonce[:]), file.ServerID)
	aead, err := aead(file.epochs[0].sessions[0], name)
	if err != nil {
		return nil, err
	}
	ticket := append(make([]byte, 0, len(name)+len(plain)+aead.Overhead()), name[:]...)
	return aead.Seal(ticket, nil, plain, name[:]), nil
}

// unwrap never returns an error, which would end the connection: what is not a ticket of ours leads to a full handshake.
func (t *Tickets) unwrap(ticket []byte, _ tls.ConnectionState) (*tls.SessionState, error) {
	if len(ticket) < sessionid.Length {
		return nil, nil
	}
	name := [sessionid.Length]byte(ticket[:sessionid.Length])
	for _, e := range t.file.Current().epochs {
		if _, ours := sessionid.Open(e.names, name); !ours {
			continue
		}
		for _, key := range e.sessions {
			aead, err := aead(key, name)
			if err != nil {
				continue
			}
			plain, err := aead.Open(nil, nil, ticket[len(name):], name[:])
			if err != nil {
				continue
			}
			if session, err := tls.ParseSessionState(plain); err == nil {
				return session, nil
			}
		}
	}
	return nil, nil
}

// aead encrypts the session of one ticket. A key for each name means that no key ever meets the 2^32 random nonces after which two would be equal; and in front
// of what it encrypts stands a nonce of 96 bits, as names alone may repeat: their own nonce has 64.
func aead(sessions []byte, name [sessionid.Length]byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, sessions, nil, "ballast ticket"+string(name[:]), keyLength)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
