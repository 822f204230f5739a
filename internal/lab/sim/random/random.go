// Package random has the random numbers of simulations: streams with names, of which none influences another, and numbers that
// belong to a flow, so that every policy meets the same flows (common random numbers).
package random

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/lab/data"
)

// Implementation constants: two hashes of a name, for the two halves of a generator's state.
const (
	firstHalf  = 0x73747265616d2d31 // "stream-1"
	secondHalf = 0x73747265616d2d32 // "stream-2"
)

// Stream is a sequence of random numbers (PCG-DXSM). It is a value: a copy goes on from where it was taken, apart from the
// original. The zero value is a valid stream, the same as every other zero value. Not safe for concurrent use.
type Stream struct{ generator rand.PCG }

// New returns the stream of a name. Streams with another name or seed are independent of it.
func New(seed uint64, name string) Stream {
	first, second := halves(seed, name)
	return Stream{*rand.NewPCG(first, second)}
}

func halves(seed uint64, name string) (first, second uint64) {
	return siphash.Sum13(seed, firstHalf, []byte(name)), siphash.Sum13(seed, secondHalf, []byte(name))
}

// Uint64 returns a number of 64 random bits.
func (s *Stream) Uint64() uint64 { return s.generator.Uint64() }

// Float64 returns a number in [0, 1), a multiple of 2^-53.
func (s *Stream) Float64() float64 { return unit(s.generator.Uint64()) }

// Intn returns a number in [0, n), every one equally likely. It panics when n < 1.
func (s *Stream) Intn(n int) int {
	if n < 1 {
		panic("random.Intn: nothing to choose from")
	}
	bound := uint64(n)
	high, low := bits.Mul64(s.generator.Uint64(), bound)
	if low < bound { // Lemire, "Fast Random Integer Generation in an Interval" (2019)
		for unfair := -bound % bound; low < unfair; {
			high, low = bits.Mul64(s.generator.Uint64(), bound)
		}
	}
	return int(high)
}

// Exp returns an exponentially distributed number >= 0 with the given mean.
func (s *Stream) Exp(mean float64) float64 { return mean * rand.New(&s.generator).ExpFloat64() }

// Pareto returns a number >= least with P(X > x) = (least/x)^alpha.
func (s *Stream) Pareto(alpha, least float64) float64 {
	return least * math.Pow(1-s.Float64(), -1/alpha)
}

// From returns a number of a distribution. Where speed matters, draw from a Sampler.
func (s *Stream) From(d *data.Distribution) float64 { return d.At(s.Float64()) }

// Shuffle puts n things into random order by swapping them, every order equally likely.
func (s *Stream) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, s.Intn(i+1))
	}
}

func unit(bits uint64) float64 { return float64(bits>>11) * 0x1p-53 }

// Key gives every flow random numbers of its own, whatever has been drawn for others: SplitMix64 (Steele, Lea and Flood,
// "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) by index. It is a value without state.
type Key struct{ start, mask uint64 }

// Keyed returns the key of a name. Numbers of keys with another name or seed are independent of its.
func Keyed(seed uint64, name string) Key {
	start, mask := halves(seed, name)
	return Key{start, mask}
}

// At returns the 64 random bits of a flow.
func (k Key) At(flow uint64) uint64 {
	z := k.start + flow*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27 ^ k.mask) * 0x94d049bb133111eb // the mask keeps keys apart whose starts lie close together
	return z ^ z>>31
}

// Float64At returns a flow's number in [0, 1).
func (k Key) Float64At(flow uint64) float64 { return unit(k.At(flow)) }

// ExpAt returns a flow's exponentially distributed number with the given mean.
func (k Key) ExpAt(flow uint64, mean float64) float64 { return -mean * math.Log(1-k.Float64At(flow)) }

// Below maps 64 random bits to [0, n), where n is so much smaller than 2^64 that nobody can tell how even it is.
func Below(bits64 uint64, n uint32) uint32 {
	high, _ := bits.Mul64(bits64, uint64(n))
	return uint32(high)
}
