package shell

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

func TestStopsAreReadInTheirOrder(t *testing.T) {
	outer := func(next byte, to uint16, rest ...byte) []byte {
		address := serverAddress(to).As16()
		frame := binary.BigEndian.AppendUint16(make([]byte, 12), 0x86dd)
		frame = append(frame, make([]byte, 6)...)
		frame = append(frame, next, 64)
		frame = append(frame, make([]byte, 16)...)
		return append(append(frame, address[:]...), rest...)
	}
	segments := func(ids ...uint16) []byte { // the last stop first
		header := []byte{4, byte(2 * len(ids)), 4, byte(len(ids)), byte(len(ids) - 1), 0, 0, 0}
		for _, id := range ids {
			address := serverAddress(id).As16()
			header = append(header, address[:]...)
		}
		return header
	}
	for name, one := range map[string]struct {
		frame []byte
		want  []uint16
	}{
		"one server":              {outer(4, 300), []uint16{300}},
		"all segments":            {outer(43, 1, segments(300, 2, 1)...), []uint16{1, 2, 300}},
		"all but the first":       {outer(43, 1, segments(300, 2)...), []uint16{1, 2, 300}},
		"cut off":                 {outer(43, 1, segments(300, 2)[:30]...), nil},
		"cut off within a header": {outer(43, 1, 4, 4), nil},
		"not encapsulated":        {make([]byte, 80), nil},
		"empty":                   {nil, nil},
	} {
		var want []netip.Addr
		for _, id := range one.want {
			want = append(want, serverAddress(id))
		}
		if got, err := stopsOf(one.frame); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}
