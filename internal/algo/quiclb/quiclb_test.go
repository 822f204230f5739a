package quiclb

import (
	"bytes"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"
)

// The vectors of the draft's appendix B. It has two misprints: the second one in plain text lacks a nibble (2a350d28b420348 for 2a350d28b4203487), and the first
// octet of the last one is printed as 12, which would be config 0.
func TestVectorsOfTheDraft(t *testing.T) {
	key := [16]byte(unhex(t, "8f95f09245765f80256934e50c66207f"))
	for _, vector := range []struct {
		config            uint8
		algorithm         Algorithm
		server, nonce, id string
	}{
		{0, Plain, "c4605e", "4504cc4f", "07c4605e4504cc4f"},
		{1, Plain, "350d28b420", "3487d970b0", "2a350d28b4203487d970b0"},
		{0, FourPass, "ed793a", "ee080dbf", "0720b1d07b359d3c"},
		{1, FourPass, "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2"},
		{2, SinglePass, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"},
		{3, FourPass, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"},
	} {
		c := Config{ID: vector.config, Algorithm: vector.algorithm, Key: key, ServerIDLength: len(vector.server) / 2, NonceLength: len(vector.nonce) / 2}
		id, err := c.Encode(unhex(t, vector.server), unhex(t, vector.nonce))
		if err != nil || hex.EncodeToString(id) != vector.id {
			t.Errorf("%s and %s: %x (%v), not %s", vector.server, vector.nonce, id, err, vector.id)
		}
		if server, err := c.Decode(id); err != nil || hex.EncodeToString(server) != vector.server {
			t.Errorf("%s: server %x (%v), not %s", vector.id, server, err, vector.server)
		}
	}
}

func TestIDsOfAllLengthsNameTheirServer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	random := func(length int) []byte {
		b := make([]byte, length)
		for i := range b {
			b[i] = byte(draw.Uint32())
		}
		return b
	}
	for algorithm := SinglePass; algorithm <= Plain; algorithm++ {
		ids := 0
		for server := 1; server <= MaxLength; server++ {
			for nonce := MinNonce; server+nonce <= MaxLength; nonce++ {
				c := Config{ID: uint8(draw.IntN(MaxID + 1)), Algorithm: algorithm, Key: [16]byte(random(16)), ServerIDLength: server, NonceLength: nonce}
				if c.Check() != nil {
					continue
				}
				want := random(server)
				id, err := c.Encode(want, random(nonce))
				if err != nil || len(id) != c.Length() {
					t.Fatalf("%+v: %x, %v", c, id, err)
				}
				if got, err := c.Decode(id); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%+v: %x names %x (%v), not %x", c, id, got, err, want)
				}
				ids++
			}
		}
		if want := map[Algorithm]int{SinglePass: 12, FourPass: 108, Plain: 120}[algorithm]; ids != want {
			t.Errorf("algorithm %d: %d lengths, not %d", algorithm, ids, want)
		}
	}
}

func TestWhatTheDraftDoesNotAllowIsRefused(t *testing.T) {
	for _, c := range []Config{
		{ID: 7, Algorithm: Plain, ServerIDLength: 2, NonceLength: 4}, {Algorithm: Plain, ServerIDLength: 0, NonceLength: 4},
		{Algorithm: Plain, ServerIDLength: 2, NonceLength: 3}, {Algorithm: Plain, ServerIDLength: 2, NonceLength: 18},
		{Algorithm: SinglePass, ServerIDLength: 2, NonceLength: 13}, {Algorithm: FourPass, ServerIDLength: 2, NonceLength: 14},
		{Algorithm: Plain + 1, ServerIDLength: 2, NonceLength: 14},
	} {
		if id, err := c.Encode(make([]byte, c.ServerIDLength), make([]byte, c.NonceLength)); err == nil {
			t.Errorf("%+v made %x", c, id)
		}
		if _, err := c.Decode(make([]byte, c.Length())); err == nil {
			t.Errorf("%+v read an id", c)
		}
	}
	for _, c := range []Config{{Algorithm: Plain, ServerIDLength: 1, NonceLength: math.MaxInt}, {Algorithm: Plain, ServerIDLength: math.MaxInt, NonceLength: 4}} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	c := Config{ID: 3, ServerIDLength: 2, NonceLength: 14}
	for _, id := range [][]byte{nil, make([]byte, 16), make([]byte, 17), make([]byte, 18)} {
		if server, err := c.Decode(id); err == nil {
			t.Errorf("%x names %x", id, server)
		}
	}
	if id, err := c.Encode(make([]byte, 3), make([]byte, 13)); err == nil {
		t.Errorf("made %x", id)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(uint8(0), uint8(SinglePass), uint8(2), uint8(14), []byte("0123456789abcdefg"))
	f.Fuzz(func(t *testing.T, config, algorithm, server, nonce uint8, id []byte) {
		c := Config{ID: config, Algorithm: Algorithm(algorithm), ServerIDLength: int(server), NonceLength: int(nonce)}
		if got, err := c.Decode(id); err == nil && len(got) != int(server) {
			t.Errorf("%+v: %x names %x", c, id, got)
		}
	})
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
