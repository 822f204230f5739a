package cookie

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/goldentest"
	"github.com/ballast-lb/ballast/internal/model"
)

const goldenFile = "../../../test/golden/cookie.json"

// vector is one line of test/golden/cookie.json. 64-bit values are hexadecimal strings: JSON readers round large numbers.
type vector struct {
	Key         string         `json:"key"`
	VIP         netip.Addr     `json:"vip"`
	Protocol    model.Protocol `json:"protocol"`
	Client      netip.AddrPort `json:"client"`
	ServicePort uint16         `json:"service_port"`
	CookieBits  uint8          `json:"cookie_bits"`
	Epoch       uint32         `json:"epoch"`
	ID          uint16         `json:"id"`
	TableSlots  uint32         `json:"table_slots"`

	ServiceK0 string `json:"service_k0"`
	ServiceK1 string `json:"service_k1"`
	FlowHash  string `json:"flow_hash"`
	Cookie    uint16 `json:"cookie"`
	Slot      uint32 `json:"slot"`
}

func (v *vector) compute(t *testing.T) {
	var key [16]byte
	if n, err := hex.Decode(key[:], []byte(v.Key)); err != nil || n != 16 {
		t.Fatalf("key %q: %v", v.Key, err)
	}
	service := ServiceKey(key, v.VIP, v.Protocol)
	hash := FlowHash(service, v.Client, v.ServicePort)
	v.ServiceK0, v.ServiceK1 = fmt.Sprintf("%016x", service.K0), fmt.Sprintf("%016x", service.K1)
	v.FlowHash = fmt.Sprintf("%016x", hash)
	v.Cookie = Encode(v.CookieBits, v.Epoch, v.ID, hash)
	v.Slot = Slot(hash, v.TableSlots)
}

// inputs returns the same vectors on every run: all widths, both families, both protocols.
func inputs() []vector {
	random := rand.New(rand.NewPCG(1, 2))
	sizes := model.TableSizes()
	var vectors []vector
	for bits := uint8(model.MinCookieBits); bits <= model.MaxCookieBits; bits++ {
		for i := range 4 {
			v := vector{CookieBits: bits, Epoch: 1 + random.Uint32N(8), ServicePort: 443, Protocol: model.ProtocolTCP,
				ID: 1 + uint16(random.UintN(1<<(bits-1)-1)), TableSlots: sizes[len(vectors)%len(sizes)]}
			v.Key = fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
			v.VIP = netip.MustParseAddr("198.51.100.10")
			client := netip.AddrFrom4([4]byte{203, 0, 113, byte(random.Uint32())})
			if i%2 == 1 {
				v.VIP = netip.MustParseAddr("2001:db8::10")
				client = netip.MustParseAddr(fmt.Sprintf("2001:db8:f00::%x", random.Uint32N(1<<16)))
			}
			if i == 2 {
				v.Protocol, v.ServicePort = model.ProtocolUDP, 53
			}
			v.Client = netip.AddrPortFrom(client, 1024+uint16(random.UintN(64000)))
			vectors = append(vectors, v)
		}
	}
	return vectors
}

func TestCookiesEqualTheGoldenVectors(t *testing.T) {
	goldentest.Check(t, goldenFile, 36, inputs, func(t *testing.T, v *vector) { v.compute(t) })
}

func anyClient(t *rapid.T) netip.AddrPort {
	var address netip.Addr
	if rapid.Bool().Draw(t, "ipv6") {
		address = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")))
	} else {
		address = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
	}
	return netip.AddrPortFrom(address, rapid.Uint16().Draw(t, "port"))
}

func anyKey(t *rapid.T) (key [16]byte) {
	copy(key[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
	return key
}

func TestDecodeFindsTheEncodedServerWhateverTheRestOfTheTimestamp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint8Range(model.MinCookieBits, model.MaxCookieBits).Draw(t, "bits")
		id := rapid.Uint16Range(1, 1<<(bits-1)-1).Draw(t, "id")
		epoch := rapid.Uint32().Draw(t, "epoch")
		hash := FlowHash(ServiceKey(anyKey(t), netip.MustParseAddr("198.51.100.10"), model.ProtocolTCP), anyClient(t), rapid.Uint16().Draw(t, "service port"))
		timestamp := rapid.Uint32().Draw(t, "clock")<<bits | uint32(Encode(bits, epoch, id, hash))
		if got := Decode(bits, timestamp, hash); got != id {
			t.Errorf("have id %d, want %d", got, id)
		}
		if got := EpochBit(bits, timestamp); got != epoch&1 {
			t.Errorf("have epoch bit %d, want %d", got, epoch&1)
		}
	})
}

func TestCookieFitsItsWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint8Range(model.MinCookieBits, model.MaxCookieBits).Draw(t, "bits")
		cookie := Encode(bits, rapid.Uint32().Draw(t, "epoch"), rapid.Uint16().Draw(t, "id"), rapid.Uint64().Draw(t, "hash"))
		if uint32(cookie)>>bits != 0 {
			t.Errorf("%#x is wider than %d bits", cookie, bits)
		}
	})
}

func TestSlotIsWithinTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SampledFrom(model.TableSizes()).Draw(t, "slots")
		if slot := Slot(rapid.Uint64().Draw(t, "hash"), slots); slot >= slots {
			t.Errorf("slot %d of %d", slot, slots)
		}
	})
}

func TestServiceKeysDifferByAddressProtocolAndKey(t *testing.T) {
	seen := make(map[Key]string)
	for _, key := range [][16]byte{{}, {1}, {15: 1}} {
		for _, vip := range []string{"198.51.100.10", "198.51.100.11", "2001:db8::10", "::"} {
			for _, protocol := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
				name := fmt.Sprint(key, vip, protocol)
				derived := ServiceKey(key, netip.MustParseAddr(vip), protocol)
				if other, ok := seen[derived]; ok || derived.K0 == derived.K1 {
					t.Errorf("%s has the key of %s", name, other)
				}
				seen[derived] = name
			}
		}
	}
}

func TestMappedClientCountsAsIPv4(t *testing.T) {
	key := Key{1, 2}
	if FlowHash(key, netip.MustParseAddrPort("[::ffff:192.0.2.1]:80"), 80) != FlowHash(key, netip.MustParseAddrPort("192.0.2.1:80"), 80) {
		t.Error("hashes differ")
	}
}
