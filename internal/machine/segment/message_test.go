package segment

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

var (
	now  = time.Unix(1700000000, 0)
	keys = model.Keys{Current: 2, Cookie: map[uint32][16]byte{1: {1}, 2: {2}}}
)

func advert() *Advert {
	return &Advert{Name: "lb1", MAC: MAC{2, 0, 0, 0, 0, 1}, Sent: now.UnixNano(), Owned: 1, Greets: true, To: "lb2", Entries: []Entry{
		{VIP: netip.MustParseAddr("198.51.100.10"), Able: true, Owned: true},
		{VIP: netip.MustParseAddr("2001:db8::10"), Able: true, Handed: true},
		{VIP: netip.MustParseAddr("2001:db8::11"), Asked: true},
		{VIP: netip.MustParseAddr("2001:db8::12"), Off: true},
	}}
}

func bytesOf(t *testing.T, a *Advert, keys *model.Keys) []byte {
	t.Helper()
	text, err := a.Bytes(keys)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAdvertisementsAreReadAsTheyWereSaid(t *testing.T) {
	for _, epoch := range []uint32{1, 2} { // of who has not changed keys yet
		said := keys
		said.Current = epoch
		for _, padding := range []int{0, 40} {
			a, err := Parse(append(bytesOf(t, advert(), &said), make([]byte, padding)...), &keys, now)
			if err != nil || !reflect.DeepEqual(a, advert()) {
				t.Errorf("epoch %d, padding %d: %+v, %v", epoch, padding, a, err)
			}
		}
	}
}

func TestWhatIsNoAdvertisementOfThisFleetIsRefused(t *testing.T) {
	text := bytesOf(t, advert(), &keys)
	for i := range text { // each bit counts
		for bit := range 8 {
			forged := append([]byte{}, text...)
			forged[i] ^= 1 << bit
			if a, err := Parse(forged, &keys, now); err == nil {
				t.Fatalf("byte %d, bit %d: %+v", i, bit, a)
			}
		}
	}
	for n := range text {
		if _, err := Parse(text[:n], &keys, now); err == nil {
			t.Fatalf("cut to %d bytes", n)
		}
	}
	others := model.Keys{Current: 2, Cookie: map[uint32][16]byte{2: {3}}}
	if _, err := Parse(text, &others, now); !errors.Is(err, ErrForged) {
		t.Errorf("of another fleet: %v", err)
	}
	if _, err := advert().Bytes(&model.Keys{}); err == nil {
		t.Error("made without a key")
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 100000 {
		garbage := make([]byte, random.IntN(200))
		for i := range garbage {
			garbage[i] = byte(random.Uint32())
		}
		copy(garbage, magic)
		if _, err := Parse(garbage, &keys, now); err == nil {
			t.Fatalf("seed %d: garbage is taken", seed)
		}
	}
}

func TestAdvertisementsOfAnotherTimeAreRefusedAndNamed(t *testing.T) {
	text := bytesOf(t, advert(), &keys)
	for _, ahead := range []time.Duration{-time.Hour, -skewMax - 1, skewMax + 1, time.Hour} {
		var skew *SkewError
		if _, err := Parse(text, &keys, now.Add(-ahead)); !errors.As(err, &skew) || skew.Name != "lb1" || skew.Ahead != ahead {
			t.Errorf("%v: %v", ahead, err)
		}
	}
	if _, err := Parse(text, &keys, now.Add(skewMax)); err != nil {
		t.Error(err)
	}
}

func TestEthernetAddressesAreReadAsTheyAreWritten(t *testing.T) {
	for _, mac := range []MAC{{}, {2, 0xab, 0, 0xff, 16, 1}} {
		var read MAC
		if text, err := mac.MarshalText(); err != nil || read.UnmarshalText(text) != nil || read != mac {
			t.Errorf("%s: %s, %v", mac, read, err)
		}
	}
	for _, text := range []string{"", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "02-00-00-00-00-01", "02:00:00:00:00:0g"} {
		read := MAC{1}
		if read.UnmarshalText([]byte(text)) == nil || read != (MAC{1}) {
			t.Errorf("%q is taken for %s", text, read)
		}
	}
}
