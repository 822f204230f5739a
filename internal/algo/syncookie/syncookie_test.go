package syncookie

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
)

func drawFlow(t *rapid.T) Flow {
	addresses := []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")}
	return Flow{
		Client:      netip.AddrPortFrom(rapid.SampledFrom(addresses).Draw(t, "address"), rapid.Uint16().Draw(t, "port")),
		ServicePort: rapid.Uint16().Draw(t, "service port"), Sequence: rapid.Uint32().Draw(t, "sequence"), Timestamp: rapid.Uint32().Draw(t, "timestamp"),
	}
}

func drawKey(t *rapid.T) cookie.Key {
	return cookie.Key{K0: rapid.Uint64().Draw(t, "k0"), K1: rapid.Uint64().Draw(t, "k1")}
}

func TestACookieTellsWhatTheSYNHasTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, f, now := drawKey(t), drawFlow(t), rapid.Uint64Range(1000, 1<<40).Draw(t, "now")
		o := Options{rapid.Uint16().Draw(t, "mss"), uint8(rapid.IntRange(0, 15).Draw(t, "scale")), rapid.Bool().Draw(t, "sack"), rapid.Bool().Draw(t, "ecn")}
		number := Make(key, f, o, now)
		want := o
		want.MSS = MSS[0]
		for _, mss := range MSS {
			if mss <= o.MSS {
				want.MSS = mss
			}
		}
		periods := rapid.IntRange(-3, 6).Draw(t, "periods") // then its three bits come round
		got, ok := Read(key, f, number, now+uint64(int64(periods)*PeriodSeconds))
		good := periods >= -periodsAhead && periods <= periodsOld
		if ok != good || ok && got != want {
			t.Fatalf("%+v after %d periods: %v, %+v", want, periods, ok, got)
		}
	})
}

func TestACookieIsGoodForItsFlowAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, f := drawKey(t), drawFlow(t)
		number := Make(key, f, Options{MSS: 1460}, 5000)
		other := f
		switch rapid.IntRange(0, 4).Draw(t, "what") {
		case 0:
			other.Client = netip.AddrPortFrom(f.Client.Addr().Next(), f.Client.Port())
		case 1:
			other.Client = netip.AddrPortFrom(f.Client.Addr(), f.Client.Port()+1)
		case 2:
			other.ServicePort++
		case 3:
			other.Sequence++
		case 4:
			other.Timestamp++
		}
		if _, ok := Read(key, other, number, 5000); ok && Make(key, other, Options{MSS: 1460}, 5000) != number { // one in a million is the same
			t.Fatalf("%+v is good for %+v", f, other)
		}
		if _, ok := Read(key, f, number^1<<rapid.IntRange(12, 31).Draw(t, "bit"), 5000); ok {
			t.Fatal("a forged one is good")
		}
	})
}

// What follows the first segment may come before it, and must never look as if the connection began there.
func TestOfAConnectionsSegmentsTheFirstAloneIsGood(t *testing.T) {
	key := cookie.Key{K0: 1, K1: 2}
	f := Flow{Client: netip.MustParseAddrPort("203.0.113.7:40000"), ServicePort: 443, Sequence: 1<<32 - 1000, Timestamp: 7}
	number := Make(key, f, Options{MSS: 1460}, 5000)
	for range 1<<20 - 1 {
		f.Sequence++
		if _, ok := Read(key, f, number, 5000); ok {
			t.Fatalf("%+v is good", f)
		}
	}
}

func TestTheTimestampIsAnOrdinaryOneOfNoServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits, hash := uint8(rapid.IntRange(8, 16).Draw(t, "bits")), rapid.Uint64().Draw(t, "hash")
		id, epoch := rapid.Uint16Range(1, 1<<(bits-1)-1).Draw(t, "id"), rapid.Uint32().Draw(t, "epoch")
		wire := Timestamp(bits, epoch, id, hash)
		if wire == 1<<bits {
			t.Skip()
		}
		if plain := cookie.Decode(bits, wire, hash); plain != 0 || cookie.EpochBit(bits, wire) != epoch&1 {
			t.Fatalf("%#x names server %d", wire, plain)
		}
		if got := Fallback(bits, wire, hash); got != id {
			t.Fatalf("%#x falls back to %d, not %d", wire, got, id)
		}
	})
}
