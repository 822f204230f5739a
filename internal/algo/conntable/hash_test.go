package conntable

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/goldentest"
)

const goldenFile = "../../../test/golden/conntable.json"

// vector is one line of test/golden/conntable.json. 64-bit values are hexadecimal strings: JSON readers round large numbers.
type vector struct {
	K0          string         `json:"k0"`
	K1          string         `json:"k1"`
	Client      netip.AddrPort `json:"client"`
	ServicePort uint16         `json:"service_port"`
	Partitions  uint32         `json:"partitions"`
	Entry       uint32         `json:"entry"`

	Hash       string `json:"hash"`
	Partition  uint32 `json:"partition"`
	Check      uint16 `json:"check"`
	ClientWord uint32 `json:"client_word"`
	Place      uint32 `json:"assignment_place"`
	Assignment string `json:"assignment"`
}

func (v *vector) compute(t *testing.T) {
	hash := Hash(unhex(t, v.K0), unhex(t, v.K1), v.Client, v.ServicePort)
	v.Hash, v.Partition, v.Check, v.ClientWord = fmt.Sprintf("%016x", hash), PartitionOf(hash, v.Partitions), Check(hash), ClientWord(hash)
	place, assignment := Assignment(hash, v.Entry)
	v.Place, v.Assignment = place, fmt.Sprintf("%016x", assignment)
}

func unhex(t *testing.T, text string) uint64 {
	number, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

func anyAddress(random *rand.Rand, ipv6 bool) netip.Addr {
	var wire [16]byte
	for i := range wire {
		wire[i] = byte(random.Uint32())
	}
	if ipv6 {
		wire[0] = 0x20
		return netip.AddrFrom16(wire)
	}
	return netip.AddrFrom4([4]byte(wire[:4]))
}

// inputs returns the same vectors on every run.
func inputs() (vectors []vector) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 24 {
		v := vector{K0: fmt.Sprintf("%016x", random.Uint64()), K1: fmt.Sprintf("%016x", random.Uint64()),
			Client:      netip.AddrPortFrom(anyAddress(random, i%2 == 1), uint16(1+random.UintN(math.MaxUint16))),
			ServicePort: uint16(1 + random.UintN(math.MaxUint16)), Partitions: 1 + random.Uint32()>>(i%32), Entry: random.Uint32()}
		vectors = append(vectors, v)
	}
	return vectors
}

func TestHashesEqualTheGoldenVectors(t *testing.T) {
	goldentest.Check(t, goldenFile, 24, inputs, func(t *testing.T, v *vector) { v.compute(t) })
}

// seeded returns a source whose seed the test prints.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// flip returns the flow with another value of one bit of what is hashed: the address, then the client's port, then the service's.
func flip(client netip.AddrPort, servicePort uint16, bit int) (netip.AddrPort, uint16) {
	wire := client.Addr().AsSlice()
	if bit < 8*len(wire) {
		wire[bit/8] ^= 1 << (bit % 8)
		address, _ := netip.AddrFromSlice(wire)
		return netip.AddrPortFrom(address, client.Port()), servicePort
	}
	if bit -= 8 * len(wire); bit < 16 {
		return netip.AddrPortFrom(client.Addr(), client.Port()^1<<bit), servicePort
	}
	return client, servicePort ^ 1<<(bit-16)
}

func TestEveryBitOfTheFlowChangesEveryBitOfTheHashByEvenChance(t *testing.T) {
	random := seeded(t)
	const samples = 2048
	for _, ipv6 := range []bool{false, true} {
		client := anyAddress(random, ipv6)
		for bit := range 8*len(client.AsSlice()) + 32 {
			var changes [64]int
			for range samples {
				k0, k1 := random.Uint64(), random.Uint64()
				from, port := netip.AddrPortFrom(anyAddress(random, ipv6), uint16(random.Uint32())), uint16(random.Uint32())
				to, toPort := flip(from, port, bit)
				for d := Hash(k0, k1, from, port) ^ Hash(k0, k1, to, toPort); d != 0; d &= d - 1 {
					changes[bits.TrailingZeros64(d)]++
				}
			}
			for i, changed := range changes {
				if part := float64(changed) / samples; math.Abs(part-0.5) > 0.09 { // 8 standard deviations
					t.Errorf("IPv6 %v: bit %d of the flow changes bit %d of the hash with a chance of %.3f", ipv6, bit, i, part)
				}
			}
		}
	}
}

// uneven returns how far counts are from even ones, in standard deviations of the chi-squared distribution.
func uneven(counts []int) float64 {
	sum, square, free := 0, 0.0, float64(len(counts)-1)
	for _, count := range counts {
		sum += count
	}
	expected := float64(sum) / float64(len(counts))
	for _, count := range counts {
		square += (float64(count) - expected) * (float64(count) - expected) / expected
	}
	return (square - free) / math.Sqrt(2*free)
}

// Flows as they are, not random ones: neighbouring addresses, ports in a row.
func TestOrdinaryFlowsSpreadEvenlyOverPartitionsAndAssignments(t *testing.T) {
	random := seeded(t)
	const partitions, flows = 1000, 1 << 18
	first := map[string]netip.Addr{"ipv4": netip.MustParseAddr("203.0.113.0"), "ipv6": netip.MustParseAddr("2001:db8::"),
		"ipv6 networks": netip.MustParseAddr("2001:db8::")}
	for name, address := range first {
		k0, k1 := random.Uint64(), random.Uint64()
		places, assigned, checks := make([]int, partitions), make([]int, 1024), make([]int, 1024)
		for i := range flows {
			wire := address.AsSlice()
			last := &wire[len(wire)-1]
			if name == "ipv6 networks" {
				last = &wire[6]
			}
			*last += byte(i >> 10)
			client, _ := netip.AddrFromSlice(wire)
			hash := Hash(k0, k1, netip.AddrPortFrom(client, uint16(32768+i%1024)), 443)
			places[PartitionOf(hash, partitions)]++
			place, _ := Assignment(hash, 0)
			assigned[place>>6]++
			checks[Check(hash)>>6]++
		}
		for what, counts := range map[string][]int{"partitions": places, "assignments": assigned, "checks": checks} {
			if got := uneven(counts); got > 8 {
				t.Errorf("%s: %s are uneven by %.1f standard deviations", name, what, got)
			}
		}
	}
}

// All that tells two connections of one client from each other, where port and partition are the same, is the service's port.
func TestPortsOfTheServiceAreToldApart(t *testing.T) {
	random := seeded(t)
	const samples = 1 << 18
	for _, ports := range [][2]uint16{{80, 443}, {80, 81}, {8080, 8081}, {443, 8443}} {
		same := 0
		for range samples {
			k0, client := random.Uint64(), netip.AddrPortFrom(anyAddress(random, false), uint16(random.Uint32()))
			if Check(Hash(k0, 0, client, ports[0])) == Check(Hash(k0, 0, client, ports[1])) {
				same++
			}
		}
		if same > 30 { // 4 by chance
			t.Errorf("ports %v: %d of %d connections have the other one's check", ports, same, samples)
		}
	}
}

func TestMappedClientCountsAsIPv4(t *testing.T) {
	if Hash(1, 2, netip.MustParseAddrPort("[::ffff:192.0.2.1]:80"), 80) != Hash(1, 2, netip.MustParseAddrPort("192.0.2.1:80"), 80) {
		t.Error("hashes differ")
	}
}

func BenchmarkHashOfIPv4(b *testing.B) {
	client := netip.MustParseAddrPort("203.0.113.7:40000")
	for b.Loop() {
		Hash(1, 2, client, 443)
	}
}
