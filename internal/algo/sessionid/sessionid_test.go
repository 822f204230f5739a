package sessionid

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/goldentest"
)

const goldenFile = "../../../test/golden/sessionid.json"

// vector is one line of test/golden/sessionid.json. 64-bit values are hexadecimal strings: JSON readers round large numbers.
type vector struct {
	Key   string `json:"key"`
	Nonce string `json:"nonce"`
	ID    uint16 `json:"id"`

	Name string `json:"name"`
}

func (v *vector) compute(t *testing.T) {
	t.Helper()
	var nonce uint64
	key, err := hex.DecodeString(v.Key)
	if _, bad := fmt.Sscanf(v.Nonce, "%016x", &nonce); err != nil || bad != nil || len(key) != 32 {
		t.Fatalf("key %q, nonce %q: %v, %v", v.Key, v.Nonce, err, bad)
	}
	name := Seal(Load([32]byte(key)), nonce, v.ID)
	if id, ok := Open(Load([32]byte(key)), name); !ok || id != v.ID {
		t.Errorf("%+v: %x opens to %d, %v", *v, name, id, ok)
	}
	v.Name = hex.EncodeToString(name[:])
}

// inputs returns the same vectors on every run.
func inputs() (vectors []vector) {
	random := rand.New(rand.NewPCG(1, 2))
	ids, nonces := []uint16{1, 7, 255, 256, 0x8000, 0xffff}, []uint64{0, 1, 1<<64 - 1}
	for i := range 32 {
		v := vector{ID: 1 + uint16(random.UintN(0xffff)), Nonce: fmt.Sprintf("%016x", random.Uint64())}
		if i < len(ids) {
			v.ID, v.Nonce = ids[i], fmt.Sprintf("%016x", nonces[i%len(nonces)])
		}
		for range 4 {
			v.Key += fmt.Sprintf("%016x", random.Uint64())
		}
		vectors = append(vectors, v)
	}
	return vectors
}

func TestNamesEqualTheGoldenVectors(t *testing.T) {
	goldentest.Check(t, goldenFile, 32, inputs, func(t *testing.T, v *vector) { v.compute(t) })
}

func anyKey(t *rapid.T, label string) Key {
	return Load([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, label)))
}

func anyName(t *rapid.T, key Key) (name [Length]byte, id uint16) {
	id = rapid.Uint16Min(1).Draw(t, "id")
	return Seal(key, rapid.Uint64().Draw(t, "nonce"), id), id
}

func TestANameOpensToTheServerItWasSealedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := anyKey(t, "key")
		name, want := anyName(t, key)
		if id, ok := Open(key, name); !ok || id != want {
			t.Errorf("%x opens to %d, %v, not to %d", name, id, ok, want)
		}
	})
}

// A client that changes its ticket does not choose its server.
func TestANameWithAnyBitChangedIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := anyKey(t, "key")
		name, _ := anyName(t, key)
		for bit := range 8 * Length {
			forged := name
			forged[bit/8] ^= 1 << (bit % 8)
			if id, ok := Open(key, forged); ok {
				t.Errorf("%x, bit %d changed, opens to %d", forged, bit, id)
			}
		}
	})
}

func TestANameOfAnotherKeyIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, other := anyKey(t, "key"), anyKey(t, "other key")
		name, _ := anyName(t, key)
		if id, ok := Open(other, name); ok && key.Tag != other.Tag {
			t.Errorf("%x opens to %d", name, id)
		}
	})
}

// 0 means no server everywhere.
func TestNoNameOpensToZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := anyKey(t, "key")
		if id, ok := Open(key, Seal(key, rapid.Uint64().Draw(t, "nonce"), 0)); ok || id != 0 {
			t.Errorf("opens to %d, %v", id, ok)
		}
	})
}

// Whoever has no key sees 16 random bytes: every bit of two names of one server differs as often as not.
func TestNamesOfOneServerHaveNothingInCommon(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	var key [32]byte
	for i := range key {
		key[i] = byte(draw.Uint32())
	}
	const pairs = 4000
	var different [8 * Length]int
	for range pairs {
		a, b := Seal(Load(key), draw.Uint64(), 7), Seal(Load(key), draw.Uint64(), 7)
		for bit := range different {
			different[bit] += int((a[bit/8] ^ b[bit/8]) >> (bit % 8) & 1)
		}
	}
	for bit, n := range different { // half of them, within eight standard deviations
		if n < pairs/2-253 || n > pairs/2+253 {
			t.Errorf("bit %d differs in %d of %d pairs", bit, n, pairs)
		}
	}
}

func FuzzOpen(f *testing.F) {
	key := Load([32]byte{1, 2, 3})
	name := Seal(key, 1, 7)
	f.Add(name[:])
	f.Add(make([]byte, Length))
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if len(bytes) != Length {
			return
		}
		name := [Length]byte(bytes)
		id, ok := Open(key, name)
		if ok != (id != 0) {
			t.Fatalf("%x opens to %d, %v", name, id, ok)
		}
		if sealed := Seal(key, binary.BigEndian.Uint64(bytes), id); ok && sealed != name {
			t.Fatalf("%x opens to %d, which is sealed as %x", name, id, sealed)
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	key := Load([32]byte{1})
	name := Seal(key, 1, 7)
	for b.Loop() {
		Open(key, name)
	}
}
