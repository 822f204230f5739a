// Package enrol is how a machine becomes a node of a fleet: the token that it is invited by, and what it says to a controller.
package enrol

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/pki"
)

// Protocol is what a joining node asks TLS for (ALPN). No other is served without a certificate.
const Protocol = "ballast-join/1"

// Specification constants of a token.
const (
	tokenPrefix  = "bt1."
	tokenVersion = 1
	idBytes      = 8
	secretBytes  = 32
	sumBytes     = 4 // a line that was not copied whole is not taken for one that was revoked
	tokenBytes   = 1 + 1 + idBytes + secretBytes + sha256.Size + 8 + sumBytes
)

// roles by their number in a token, less one.
var roles = []pki.Role{pki.LB, pki.Agent}

// Token lets its owner join a fleet. Controllers keep of the secret its Hash alone.
type Token struct {
	Role   pki.Role
	ID     string // of the invitation, hexadecimal digits
	Secret [secretBytes]byte
	Root   [sha256.Size]byte // pki.HashOf the fleet's authority
	Ends   time.Time         // to the second; the controllers' clock decides
}

// NewToken makes a token of a fleet.
func NewToken(role pki.Role, root [sha256.Size]byte, ends time.Time) *Token {
	t := &Token{Role: role, Root: root, Ends: ends.Truncate(time.Second)}
	id := make([]byte, idBytes)
	rand.Read(id) // it never fails
	rand.Read(t.Secret[:])
	t.ID = hex.EncodeToString(id)
	return t
}

// Hash is what controllers keep. The secret is random and long, so nobody finds it by trying.
func (t *Token) Hash() []byte {
	sum := sha256.Sum256(t.Secret[:])
	return sum[:]
}

// String is the token as people paste it.
func (t *Token) String() string {
	id, err := hex.DecodeString(t.ID)
	if err != nil || len(id) != idBytes {
		panic("the id of a token is not of 8 bytes")
	}
	content := []byte{tokenVersion, byte(1 + slices.Index(roles, t.Role))}
	content = append(content, id...)
	content = append(content, t.Secret[:]...)
	content = append(content, t.Root[:]...)
	content = binary.BigEndian.AppendUint64(content, uint64(t.Ends.Unix()))
	sum := sha256.Sum256(content)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(content, sum[:sumBytes]...))
}

// LogValue keeps the secret out of logs.
func (t *Token) LogValue() slog.Value { return slog.StringValue("invitation " + t.ID) }

var errToken = errors.New("it is no token, or not the whole of one: copy it again, from bt1. on")

// ParseToken reads what String has written.
func ParseToken(text string) (*Token, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return nil, errToken
	}
	content, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(content) != tokenBytes {
		return nil, errToken
	}
	rest, said := content[:tokenBytes-sumBytes], content[tokenBytes-sumBytes:]
	sum := sha256.Sum256(rest)
	if !bytes.Equal(sum[:sumBytes], said) {
		return nil, errToken
	}
	if version := rest[0]; version != tokenVersion {
		return nil, fmt.Errorf("it has version %d, this program knows %d: upgrade Ballast on this machine", version, tokenVersion)
	}
	role := int(rest[1]) - 1
	if role < 0 || role >= len(roles) {
		return nil, errToken
	}
	t := &Token{Role: roles[role]}
	rest = rest[2:]
	t.ID, rest = hex.EncodeToString(rest[:idBytes]), rest[idBytes:]
	rest = rest[copy(t.Secret[:], rest):]
	rest = rest[copy(t.Root[:], rest):]
	t.Ends = time.Unix(int64(binary.BigEndian.Uint64(rest)), 0)
	return t, nil
}
