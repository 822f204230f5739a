// Package quiclb makes QUIC connection ids by which Ballast load balancers find the server that issued them (draft-ietf-quic-load-balancers-21). It is for
// applications that accept QUIC connections for a service with `affinity: quic`: every id that they issue, the first one and a Retry's included, must come from
// here.
//
// `ballast agent` writes what a server needs to a file, and writes it anew when keys change; a Generator follows the file. For quic-go see package quicgo.
package quiclb

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
)

// followPeriod is how often a Generator looks whether its file is another one, at most.
const followPeriod = time.Second

const fileMax = 1 << 16 // bytes

// A File is what `ballast agent` writes for one service. Who can read it can issue ids in the name of its server, and tell which server an id names.
type File struct {
	Service     string `json:"service"`
	Config      uint8  `json:"config"`    // the first three bits of ids, 0 to 6
	Algorithm   string `json:"algorithm"` // single-pass, four-pass, plain
	Key         Secret `json:"key"`       // 16 bytes, of ids
	ServerID    Secret `json:"server_id"` // 1 to 8 bytes
	NonceLength int    `json:"nonce_length"`
	ResetKey    Secret `json:"stateless_reset_key"` // 32 bytes, of this server alone
	TokenKey    Secret `json:"token_key"`           // 32 bytes, of all servers of the service
}

// Secret is bytes that are hexadecimal digits in JSON.
type Secret []byte

// MarshalText returns hexadecimal digits.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s)), nil }

// UnmarshalText reads hexadecimal digits.
func (s *Secret) UnmarshalText(text []byte) (err error) {
	*s, err = hex.DecodeString(string(text))
	return err
}

// String hides the bytes.
func (s Secret) String() string { return fmt.Sprintf("(%d bytes)", len(s)) }

var algorithms = map[string]quiclb.Algorithm{"single-pass": quiclb.SinglePass, "four-pass": quiclb.FourPass, "plain": quiclb.Plain}

// config returns how ids are made, or what is wrong with the file.
func (f *File) config() (c quiclb.Config, err error) {
	algorithm, ok := algorithms[f.Algorithm]
	switch {
	case !ok:
		return c, fmt.Errorf("algorithm %q is none of single-pass, four-pass, plain", f.Algorithm)
	case len(f.Key) != len(c.Key) && algorithm != quiclb.Plain:
		return c, fmt.Errorf("key has %d bytes, not %d", len(f.Key), len(c.Key))
	case len(f.ResetKey) != 32 || len(f.TokenKey) != 32:
		return c, fmt.Errorf("stateless_reset_key and token_key have %d and %d bytes, not 32", len(f.ResetKey), len(f.TokenKey))
	}
	c = quiclb.Config{ID: f.Config, Algorithm: algorithm, ServerIDLength: len(f.ServerID), NonceLength: f.NonceLength}
	copy(c.Key[:], f.Key)
	return c, c.Check()
}

// A Generator issues connection ids. It is safe for concurrent use.
type Generator struct {
	path   string
	length int

	mu     sync.Mutex
	file   File
	config quiclb.Config
	looked time.Time
	stamp  os.FileInfo
	err    error
}

// Open reads the agent's file. An error: it is not there or not right.
func Open(path string) (*Generator, error) {
	g := &Generator{path: path}
	if err := g.read(); err != nil {
		return nil, err
	}
	g.length, g.looked = g.config.Length(), time.Now()
	return g, nil
}

// read takes over the file, or leaves everything as it is.
func (g *Generator) read() error {
	stamp, err := os.Stat(g.path)
	if err != nil {
		return err
	}
	if !stamp.Mode().IsRegular() || stamp.Size() > fileMax {
		return fmt.Errorf("read %s: it is no file of at most %d bytes", g.path, fileMax)
	}
	text, err := os.ReadFile(g.path)
	if err != nil {
		return err
	}
	var file File
	if err := json.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("read %s: %w", g.path, err)
	}
	config, err := file.config()
	if err != nil {
		return fmt.Errorf("read %s: %w", g.path, err)
	}
	if g.length != 0 && (config.Length() != g.length || !slices.Equal(file.ResetKey, g.file.ResetKey) || !slices.Equal(file.TokenKey, g.file.TokenKey)) {
		return fmt.Errorf("read %s: the length of ids (%d, not %d) or a key other than that of ids has changed: start the application again", g.path, config.Length(), g.length)
	}
	g.file, g.config, g.stamp = file, config, stamp
	return nil
}

// follow takes over the file if it is another one.
func (g *Generator) follow(now time.Time) {
	if now.Sub(g.looked) < followPeriod {
		return
	}
	g.looked = now
	stamp, err := os.Stat(g.path)
	if err == nil && g.err == nil && os.SameFile(stamp, g.stamp) && stamp.ModTime().Equal(g.stamp.ModTime()) && stamp.Size() == g.stamp.Size() {
		return
	}
	if err == nil {
		err = g.read()
	}
	g.err = err
}

// New returns an id of Length bytes that names this server.
func (g *Generator) New() ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.follow(time.Now())
	nonce := make([]byte, g.config.NonceLength)
	rand.Read(nonce)
	return g.config.Encode(g.file.ServerID, nonce)
}

// Length is how many bytes every id has.
func (g *Generator) Length() int { return g.length }

// Err says why the file as it is now is not followed, and ids are made by what was read before; nil: it is followed.
func (g *Generator) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return errors.Join(errors.New("connection ids are made by an older file"), g.err)
	}
	return nil
}

// StatelessResetKey is of this server alone (RFC 9000 10.3). If servers shared it, one second in which packets reach the wrong one would end connections.
func (g *Generator) StatelessResetKey() [32]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return [32]byte(g.file.ResetKey)
}

// TokenKey is shared by all servers of the service: a client shows the token of a Retry, or of an earlier connection, to any of them (RFC 9000 8.1).
func (g *Generator) TokenKey() [32]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return [32]byte(g.file.TokenKey)
}
