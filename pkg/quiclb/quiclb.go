// Package quiclb makes QUIC connection ids by which Ballast load balancers find the server that issued them (draft-ietf-quic-load-balancers-21). It is for
// applications that accept QUIC connections for a service with `affinity: quic`: every id that they issue, the first one and a Retry's included, must come from
// here.
//
// `ballast agent` writes what a server needs to a file, and writes it anew when keys change; a Generator follows the file. For quic-go see package quicgo.
package quiclb

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/pkg/internal/agentfile"
)

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

// Secret is bytes that are hexadecimal digits in JSON. It is printed without them.
type Secret = agentfile.Secret

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

// followed is a file, and how ids are made by it.
type followed struct {
	File
	config quiclb.Config
}

func (f *followed) check(before *followed) (err error) {
	if f.config, err = f.File.config(); err != nil || before == nil {
		return err
	}
	if f.config.Length() != before.config.Length() || !slices.Equal(f.ResetKey, before.ResetKey) || !slices.Equal(f.TokenKey, before.TokenKey) {
		return fmt.Errorf("the length of ids (%d, not %d) or a key other than that of ids has changed: start the application again", f.config.Length(), before.config.Length())
	}
	return nil
}

// A Generator issues connection ids. It is safe for concurrent use.
type Generator struct {
	file            *agentfile.Follower[followed]
	length          int
	reset, tokenKey [32]byte
}

// Open reads the agent's file. An error: it is not there or not right.
func Open(path string) (*Generator, error) {
	file, err := agentfile.Open(path, (*followed).check)
	if err != nil {
		return nil, err
	}
	first := file.Current()
	return &Generator{file: file, length: first.config.Length(), reset: [32]byte(first.ResetKey), tokenKey: [32]byte(first.TokenKey)}, nil
}

// New returns an id of Length bytes that names this server.
func (g *Generator) New() ([]byte, error) {
	file := g.file.Current()
	nonce := make([]byte, file.config.NonceLength)
	rand.Read(nonce)
	return file.config.Encode(file.ServerID, nonce)
}

// Length is how many bytes every id has.
func (g *Generator) Length() int { return g.length }

// Err says why the file as it is now is not followed, and ids are made by what was read before; nil: it is followed.
func (g *Generator) Err() error {
	if err := g.file.Err(); err != nil {
		return errors.Join(errors.New("connection ids are made by an older file"), err)
	}
	return nil
}

// StatelessResetKey is of this server alone (RFC 9000 10.3). If servers shared it, one second in which packets reach the wrong one would end connections.
func (g *Generator) StatelessResetKey() [32]byte { return g.reset }

// TokenKey is shared by all servers of the service: a client shows the token of a Retry, or of an earlier connection, to any of them (RFC 9000 8.1).
func (g *Generator) TokenKey() [32]byte { return g.tokenKey }
