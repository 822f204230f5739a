// Package aestables is AES-128 (FIPS 197) as the BPF programs run it: its tables, and the round keys that they are used with. Go code encrypts with
// crypto/aes.
package aestables

import (
	"encoding/binary"
	"math/bits"
	"sync"
)

// rounds of AES-128.
const rounds = 10

// Keys are the round keys of one direction, as big-endian words: struct aes_key in bpf/lb/packet/aes.h.
type Keys [4 * (rounds + 1)]uint32

// Tables are what a round makes of each byte: one word for each of the four bytes that a word is made of, and a byte in the last round.
type Tables struct {
	EncryptWords, DecryptWords [4][256]uint32
	EncryptBytes, DecryptBytes [256]byte
}

// Make computes the tables.
func Make() *Tables {
	t := &Tables{EncryptBytes: substitutes()}
	for from, to := range t.EncryptBytes {
		t.DecryptBytes[to] = byte(from)
	}
	for i := range 256 {
		s, inverse := t.EncryptBytes[i], t.DecryptBytes[i]
		encrypt := binary.BigEndian.Uint32([]byte{multiply(s, 2), s, s, multiply(s, 3)})
		decrypt := mixBack(uint32(inverse) << 24)
		for at := range 4 {
			t.EncryptWords[at][i] = bits.RotateLeft32(encrypt, -8*at)
			t.DecryptWords[at][i] = bits.RotateLeft32(decrypt, -8*at)
		}
	}
	return t
}

// EncryptKeys expands a key (FIPS 197 5.2).
func EncryptKeys(key [16]byte) (keys Keys) {
	boxes := substitutes()
	for i := range 4 {
		keys[i] = binary.BigEndian.Uint32(key[4*i:])
	}
	constant := byte(1)
	for i := 4; i < len(keys); i++ {
		word := keys[i-1]
		if i%4 == 0 {
			b := binary.BigEndian.AppendUint32(nil, bits.RotateLeft32(word, 8))
			word = binary.BigEndian.Uint32([]byte{boxes[b[0]] ^ constant, boxes[b[1]], boxes[b[2]], boxes[b[3]]})
			constant = multiply(constant, 2)
		}
		keys[i] = keys[i-4] ^ word
	}
	return keys
}

// DecryptKeys are those of the equivalent inverse cipher (FIPS 197 5.3.5), in the order in which it uses them.
func DecryptKeys(key [16]byte) (keys Keys) {
	encrypt := EncryptKeys(key)
	for round := range rounds + 1 {
		for i := range 4 {
			word := encrypt[4*(rounds-round)+i]
			if round > 0 && round < rounds {
				word = mixBack(word)
			}
			keys[4*round+i] = word
		}
	}
	return keys
}

// mixBack is InvMixColumns of one column (FIPS 197 5.3.3).
func mixBack(column uint32) uint32 {
	b := binary.BigEndian.AppendUint32(nil, column)
	var mixed [4]byte
	for i := range mixed {
		mixed[i] = multiply(b[i], 14) ^ multiply(b[(i+1)%4], 11) ^ multiply(b[(i+2)%4], 13) ^ multiply(b[(i+3)%4], 9)
	}
	return binary.BigEndian.Uint32(mixed[:])
}

// substitutes is the S-box (FIPS 197 5.1.1).
var substitutes = sync.OnceValue(func() (boxes [256]byte) {
	for i := range 256 {
		inverse := byte(0)
		for candidate := 1; candidate < 256 && i != 0; candidate++ {
			if multiply(byte(i), byte(candidate)) == 1 {
				inverse = byte(candidate)
				break
			}
		}
		boxes[i] = 0x63
		for turn := range 5 {
			boxes[i] ^= bits.RotateLeft8(inverse, turn)
		}
	}
	return boxes
})

// multiply is the product in GF(2^8) (FIPS 197 4.2).
func multiply(a, b byte) (product byte) {
	for ; b > 0; b >>= 1 {
		if b&1 != 0 {
			product ^= a
		}
		high := a & 0x80
		a <<= 1
		if high != 0 {
			a ^= 0x1b
		}
	}
	return product
}
