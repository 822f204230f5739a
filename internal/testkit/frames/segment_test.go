package frames

import (
	"net"
	"net/netip"
	"reflect"
	"testing"
)

func TestASegmentIsReadAsItWasWrittenAlsoInATunnel(t *testing.T) {
	written := Segment{
		From: net.HardwareAddr{2, 0, 0, 0, 0, 1}, To: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		Client: netip.MustParseAddrPort("203.0.113.7:4321"), Service: netip.MustParseAddrPort("198.51.100.10:80"),
		FIN: true, Sequence: 1 << 31, Acknowledged: 77, Value: 12345, Echo: 1<<32 - 1,
	}
	frame, err := written.Frame()
	if err != nil {
		t.Fatal(err)
	}
	if read, ok := Parse(frame); !ok || !reflect.DeepEqual(read, written) {
		t.Errorf("%+v is read as %+v", written, read)
	}
	outer := append(frame[:14:14], frame[14:34]...)
	for name, tunnel := range map[string][]byte{
		"IP in IP": withProtocol(outer, 4), "GUE": append(withProtocol(outer, 17), 0xc0, 0, 6080>>8, 6080&0xff, 0, 0, 0, 0, 1, 4, 0, 0, 9, 9, 9, 9),
	} {
		if read, ok := Tunnelled(append(tunnel, frame[14:]...)); !ok || !reflect.DeepEqual(read, written) {
			t.Errorf("%s: %+v is read as %+v", name, written, read)
		}
	}
	for length := range frame {
		Parse(frame[:length])
		Tunnelled(frame[:length])
	}
}

func withProtocol(header []byte, protocol byte) []byte {
	changed := append([]byte(nil), header...)
	changed[14+9] = protocol
	return changed
}
