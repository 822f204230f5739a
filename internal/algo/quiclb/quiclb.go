// Package quiclb makes and reads QUIC connection ids that name a server: draft-ietf-quic-load-balancers-21.
//
// An id is one octet, whose three high bits name the config, then the server's id and a nonce, together 5 to 19 bytes, hidden by the config's algorithm.
package quiclb

import (
	"crypto/aes"
	"fmt"
)

// Algorithm is how server id and nonce are hidden.
type Algorithm uint8

const (
	SinglePass Algorithm = iota // one block of AES-128 (5.4.1)
	FourPass                    // four Feistel passes of AES-128 (5.4.2)
	Plain                       // not at all (5.3)
)

// Implementation constants: bounds of the draft.
const (
	MaxID     = 6  // of a config; 7 says that there is none (3.2)
	MinNonce  = 4  // bytes (5.1)
	MaxLength = 19 // of server id and nonce: an id has 20 bytes at most (RFC 9000 17.2)
)

// A Config is one form of ids, and their key.
type Config struct {
	ID             uint8 // 0 to 6
	Algorithm      Algorithm
	Key            [16]byte // not of Plain
	ServerIDLength int      // bytes
	NonceLength    int      // bytes
}

// Length is how many bytes an id has.
func (c *Config) Length() int { return 1 + c.ServerIDLength + c.NonceLength }

// Check returns what the draft does not allow.
func (c *Config) Check() error {
	both := c.Length() - 1
	switch {
	case c.ID > MaxID:
		return fmt.Errorf("config %d is none of 0 to %d", c.ID, MaxID)
	case c.ServerIDLength < 1:
		return fmt.Errorf("server ids of %d bytes", c.ServerIDLength)
	case c.NonceLength < MinNonce:
		return fmt.Errorf("a nonce of %d bytes, at least %d are needed", c.NonceLength, MinNonce)
	case c.ServerIDLength > MaxLength, c.NonceLength > MaxLength, both > MaxLength: // each alone: sums overflow
		return fmt.Errorf("server id and nonce have %d bytes, an id has room for %d", both, MaxLength)
	case c.Algorithm == SinglePass && both != aes.BlockSize:
		return fmt.Errorf("server id and nonce have %d bytes, a single pass has %d", both, aes.BlockSize)
	case c.Algorithm == FourPass && both == aes.BlockSize:
		return fmt.Errorf("server id and nonce have %d bytes: use a single pass", both)
	case c.Algorithm > Plain:
		return fmt.Errorf("unknown algorithm %d", c.Algorithm)
	}
	return nil
}

// Encode makes an id. The low bits of its first octet say its length.
func (c *Config) Encode(server, nonce []byte) ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(server) != c.ServerIDLength || len(nonce) != c.NonceLength {
		return nil, fmt.Errorf("a server id of %d bytes and a nonce of %d, not %d and %d", len(server), len(nonce), c.ServerIDLength, c.NonceLength)
	}
	id := append(append([]byte{c.ID<<5 | byte(c.Length()-1)}, server...), nonce...)
	switch c.Algorithm {
	case SinglePass:
		block, err := aes.NewCipher(c.Key[:])
		if err != nil {
			return nil, err
		}
		block.Encrypt(id[1:], id[1:])
	case FourPass:
		if err := c.passes(id[1:], 1, 2, 3, 4); err != nil {
			return nil, err
		}
	}
	return id, nil
}

// Decode returns the server's id in an id of this config, or an error for one of another length or config.
func (c *Config) Decode(id []byte) (server []byte, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(id) != c.Length() {
		return nil, fmt.Errorf("%d bytes, not %d", len(id), c.Length())
	}
	if id[0]>>5 != c.ID {
		return nil, fmt.Errorf("an id of config %d, not %d", id[0]>>5, c.ID)
	}
	plain := append([]byte(nil), id[1:]...)
	switch c.Algorithm {
	case SinglePass:
		block, err := aes.NewCipher(c.Key[:])
		if err != nil {
			return nil, err
		}
		block.Decrypt(plain, plain)
	case FourPass:
		if err := c.passes(plain, 4, 3, 2, 1); err != nil {
			return nil, err
		}
	}
	return plain[:c.ServerIDLength], nil
}

// passes mixes the halves of text with each other, in the order of the numbers. Of an odd length the byte in the middle belongs to both, by four bits.
func (c *Config) passes(text []byte, numbers ...byte) error {
	block, err := aes.NewCipher(c.Key[:])
	if err != nil {
		return err
	}
	half, odd := (len(text)+1)/2, len(text)%2 == 1
	left, right := append([]byte(nil), text[:half]...), append([]byte(nil), text[len(text)-half:]...)
	apart := func() {
		if odd {
			left[half-1] &= 0xf0
			right[0] &= 0x0f
		}
	}
	apart()
	for _, number := range numbers {
		from, to := left, right
		if number%2 == 0 {
			from, to = right, left
		}
		var mixed [aes.BlockSize]byte
		copy(mixed[:], from)
		mixed[14], mixed[15] = byte(len(text)), number
		block.Encrypt(mixed[:], mixed[:])
		for i := range to {
			to[i] ^= mixed[i]
		}
		apart()
	}
	if odd {
		left[half-1] |= right[0]
		right = right[1:]
	}
	copy(text[copy(text, left):], right)
	return nil
}
