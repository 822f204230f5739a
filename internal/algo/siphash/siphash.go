// Package siphash computes SipHash-1-3: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (Indocrypt 2012, section 2),
// with one compression and three finalisation rounds as in Rust's and Linux's hash tables; and SipHash-2-4, as its authors recommend it for
// authentication. bpf/wire/siphash.h and peer_message.h are the same in C.
package siphash

import (
	"encoding/binary"
	"math/bits"
)

// Specification constants (SipHash section 2.1: "somepseudorandomlygeneratedbytes").
const (
	init0 = 0x736f6d6570736575
	init1 = 0x646f72616e646f6d
	init2 = 0x6c7967656e657261
	init3 = 0x7465646279746573
)

type state struct{ v0, v1, v2, v3 uint64 }

// State is struct siphash_state.
type State struct{ V0, V1, V2, V3 uint64 }

// Begin returns the state of a key, as far as no message is needed: half of the first round is done. Packets go on from there.
func Begin(k0, k1 uint64) State {
	s := start(k0, k1)
	s.v0 += s.v1
	s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
	return State{bits.RotateLeft64(s.v0, 32), s.v1, s.v2, s.v3}
}

func start(k0, k1 uint64) state { return state{k0 ^ init0, k1 ^ init1, k0 ^ init2, k1 ^ init3} }

func (s *state) round() {
	s.v0 += s.v1
	s.v2 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 13) ^ s.v0
	s.v3 = bits.RotateLeft64(s.v3, 16) ^ s.v2
	s.v0 = bits.RotateLeft64(s.v0, 32)
	s.v2 += s.v1
	s.v0 += s.v3
	s.v1 = bits.RotateLeft64(s.v1, 17) ^ s.v2
	s.v3 = bits.RotateLeft64(s.v3, 21) ^ s.v0
	s.v2 = bits.RotateLeft64(s.v2, 32)
}

func (s *state) compress(word uint64, rounds int) {
	s.v3 ^= word
	for range rounds {
		s.round()
	}
	s.v0 ^= word
}

// Sum13 returns the 64-bit SipHash-1-3 of message under the key (k0, k1), the two little-endian halves of a 16-byte key.
func Sum13(k0, k1 uint64, message []byte) uint64 { return sum(k0, k1, message, 1, 3) }

// Sum24 returns the 64-bit SipHash-2-4.
func Sum24(k0, k1 uint64, message []byte) uint64 { return sum(k0, k1, message, 2, 4) }

func sum(k0, k1 uint64, message []byte, compression, finalization int) uint64 {
	s := start(k0, k1)
	length := len(message)
	for len(message) >= 8 {
		s.compress(binary.LittleEndian.Uint64(message), compression)
		message = message[8:]
	}
	var last [8]byte
	copy(last[:], message)
	last[7] = byte(length)
	s.compress(binary.LittleEndian.Uint64(last[:]), compression)
	s.v2 ^= 0xff
	for range finalization {
		s.round()
	}
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}
