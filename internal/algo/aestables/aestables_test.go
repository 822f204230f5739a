package aestables

import (
	"crypto/aes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// run is what bpf/lb/packet/aes.h does; order are the columns that the bytes of the first come from.
func run(words *[4][256]uint32, boxes *[256]byte, keys *Keys, order [4]int, block [16]byte) (out [16]byte) {
	var s [4]uint32
	for i := range s {
		s[i] = binary.BigEndian.Uint32(block[4*i:]) ^ keys[i]
	}
	at := func(column, row int) byte { return byte(s[(column+order[row])%4] >> (24 - 8*row)) }
	for round := 1; round < rounds; round++ {
		var next [4]uint32
		for i := range next {
			next[i] = keys[4*round+i]
			for row := range 4 {
				next[i] ^= words[row][at(i, row)]
			}
		}
		s = next
	}
	for i := range s {
		for row := range 4 {
			out[4*i+row] = boxes[at(i, row)] ^ byte(keys[4*rounds+i]>>(24-8*row))
		}
	}
	return out
}

func TestTablesAndKeysAreThoseOfAES(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	tables := Make()
	for range 1000 {
		var key, block, want [16]byte
		for i := range key {
			key[i], block[i] = byte(draw.Uint32()), byte(draw.Uint32())
		}
		cipher, err := aes.NewCipher(key[:])
		if err != nil {
			t.Fatal(err)
		}
		encrypt, decrypt := EncryptKeys(key), DecryptKeys(key)
		cipher.Encrypt(want[:], block[:])
		if got := run(&tables.EncryptWords, &tables.EncryptBytes, &encrypt, [4]int{0, 1, 2, 3}, block); got != want {
			t.Fatalf("key %x: %x encrypted is %x, not %x", key, block, want, got)
		}
		cipher.Decrypt(want[:], block[:])
		if got := run(&tables.DecryptWords, &tables.DecryptBytes, &decrypt, [4]int{0, 3, 2, 1}, block); got != want {
			t.Fatalf("key %x: %x decrypted is %x, not %x", key, block, want, got)
		}
	}
}
