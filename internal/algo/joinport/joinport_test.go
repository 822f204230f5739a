package joinport

import (
	"math/rand/v2"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
)

// Every server has a port of its own, whatever the number of ports.
func TestPermuteIsAPermutation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, count := range []uint32{1, 2, 3, 4, 5, 7, 100, 255, 256, 257, 1024, 4095, 65535, 65536, 1 + random.Uint32N(65536)} {
		key := cookie.Key{K0: random.Uint64(), K1: random.Uint64()}
		seen := make([]bool, count)
		for i := range count {
			to := Permute(key, count, i)
			if to >= count || seen[to] {
				t.Fatalf("of %d, %d goes to %d, which is none or taken", count, i, to)
			}
			seen[to] = true
		}
	}
}

// Who knows the ports of some servers does not know those of others: neighbours are no nearer than others are, and keys differ.
func TestPermuteHidesItsOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const count, keys = 1024, 1000
	var next, same int
	for range keys {
		a, b := cookie.Key{K0: random.Uint64(), K1: random.Uint64()}, cookie.Key{K0: random.Uint64(), K1: random.Uint64()}
		for i := range uint32(count - 1) {
			if Permute(a, count, i+1) == Permute(a, count, i)+1 {
				next++
			}
			if Permute(a, count, i) == Permute(b, count, i) {
				same++
			}
		}
	}
	for name, n := range map[string]int{"successors": next, "fixed between two keys": same} {
		if n < keys*8/10 || n > keys*12/10 { // one a key: six standard deviations
			t.Errorf("%s: %d of %d keys, about %d are by chance", name, n, keys, keys)
		}
	}
}

// The golden values: ports of living fleets must not move with an upgrade.
func TestPermuteIsTheSameForEver(t *testing.T) {
	key := cookie.Key{K0: 0x0706050403020100, K1: 0x0f0e0d0c0b0a0908}
	for i, want := range []uint32{733, 869, 1005, 237, 886, 187} {
		if got := Permute(key, 1024, uint32(i)); got != want {
			t.Errorf("%d goes to %d, not %d", i, got, want)
		}
	}
}
