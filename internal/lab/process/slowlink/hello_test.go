package slowlink

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

const isn = 1<<32 - 500 // sequence numbers wrap within the hello

var source = netip.MustParseAddr("10.10.1.1")

// frame is one of a client, with data from an offset on.
func frame(t *testing.T, syn bool, offset uint32, data []byte) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: source.AsSlice(), DstIP: net.IPv4(198, 51, 100, 10)}
	tcp := &layers.TCP{SrcPort: 4321, DstPort: 443, Seq: isn + offset, SYN: syn, ACK: !syn}
	if !syn {
		tcp.Seq++
	}
	buffer := gopacket.NewSerializeBuffer()
	err := tcp.SetNetworkLayerForChecksum(ip)
	if err == nil {
		err = gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}, ip, tcp, gopacket.Payload(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestSegmentsOfHellosAreLostDoubledAndOvertakenOnce(t *testing.T) {
	const size, length = 1000, 2500 // of a segment, of the hello with its header
	clientHello := make([]byte, length)
	copy(clientHello, []byte{recordHandshake, 3, 1, (length - recordHeader) >> 8, (length - recordHeader) & 0xff})
	for _, one := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, "0 1 2 0 1 2"},
		{Fault{Lost: []int{1}}, "0 2 0 1 2"},
		{Fault{Doubled: []int{0, 2}}, "0 0 1 2 2 0 1 2"},
		{Fault{Swapped: []int{0}}, "1 0 2 0 1 2"},
		{Fault{Swapped: []int{1}}, "0 2 1 0 1 2"},
		{Fault{Swapped: []int{2}}, "0 1 2 0 1 2"}, // nothing follows
		{Fault{Lost: []int{0, 1, 2}}, "0 1 2"},
	} {
		one.fault.Source = source
		h := newClientHellos([]Fault{one.fault})
		h.pass(frame(t, true, 0, nil))
		var got []string
		for range 2 { // what comes again passes
			for i := range 3 {
				sent := frame(t, false, uint32(i)*size, clientHello[i*size:min(length, (i+1)*size)])
				for _, passed := range h.pass(sent) {
					packet := gopacket.NewPacket(passed, layers.LayerTypeEthernet, gopacket.Default)
					got = append(got, fmt.Sprint((packet.TransportLayer().(*layers.TCP).Seq-isn-1)/size))
				}
			}
		}
		if strings.Join(got, " ") != one.want {
			t.Errorf("%+v: %v instead of %s", one.fault, got, one.want)
		}
		if seen := h.seen[source]; seen.Connections != 1 || seen.Segments != 3 || seen.Most != 3 {
			t.Errorf("%+v: %+v", one.fault, seen)
		}
	}
}

func TestWhatIsOfNoHelloPassesAsItIs(t *testing.T) {
	h := newClientHellos([]Fault{{Source: source, Lost: []int{0, 1, 2, 3}}})
	h.pass(frame(t, true, 0, nil))
	for name, one := range map[string][]byte{
		"no frame": {1, 2, 3}, "an acknowledgement": frame(t, false, 0, nil), "no TLS": frame(t, false, 0, []byte("GET / HTTP/1.0\r\n\r\n")), "a SYN": frame(t, true, 0, nil),
	} {
		if passed := h.pass(one); !reflect.DeepEqual(passed, [][]byte{one}) {
			t.Errorf("%s is passed on as %v", name, passed)
		}
	}
}
