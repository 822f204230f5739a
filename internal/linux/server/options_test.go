package server_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// egress runs a segment of the service through the egress program. Without a real socket it is what the kernel sends for
// TIME_WAIT: the clock alone is shifted.
func (r *rig) egress(frame []byte) (out []byte) {
	r.t.Helper()
	_, _, program := r.agent.Programs()
	out = make([]byte, len(frame)+64)
	options := ebpf.RunOptions{Data: frame, DataOut: out}
	progtest.Check(r.t, r.server.Do(func() error { _, err := program.Run(&options); return err }))
	return options.DataOut
}

// answerWith is a segment from the service to a client with these bytes as its options, padded to whole words.
func answerWith(t testing.TB, vip netip.Addr, options []byte) []byte {
	client := netip.MustParseAddr("10.9.0.1")
	ethertype := layers.EthernetTypeIPv4
	if vip.Is6() {
		client, ethertype = netip.MustParseAddr("fd09::1"), layers.EthernetTypeIPv6
	}
	ip := ipLayer(vip, client, layers.IPProtocolTCP, 0)
	header := make([]byte, 20, 60)
	binary.BigEndian.PutUint16(header, servicePort)
	binary.BigEndian.PutUint16(header[2:], 1234)
	header = append(header, options...)
	for len(header)%4 != 0 {
		header = append(header, 0)
	}
	header[12], header[13] = byte(len(header)/4)<<4, 0x10
	segment := append(header, "some payload"...)
	binary.BigEndian.PutUint16(segment[16:], tcpChecksum(vip, client, segment))
	eth := &layers.Ethernet{SrcMAC: balancerMAC, DstMAC: make([]byte, 6), EthernetType: ethertype}
	return build(t, eth, ip, gopacket.Payload(segment))
}

// tcpChecksum is RFC 9293's, with the field as it is taken for 0 when it is 0.
func tcpChecksum(from, to netip.Addr, segment []byte) uint16 {
	sum := uint32(6) + uint32(len(segment))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), segment} {
		for i, b := range part {
			if i%2 == 0 {
				sum += uint32(b) << 8
			} else {
				sum += uint32(b)
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// reference marks a frame as the egress program should: nil when it must stay as it is.
func (r *rig) reference(frame []byte, vip netip.Addr) []byte {
	tcp := 34
	if vip.Is6() {
		tcp = 54
	}
	options := frame[tcp+20 : tcp+int(frame[tcp+12]>>4)*4]
	at, ok := findTimestamp(options)
	if !ok {
		return nil
	}
	out := bytes.Clone(frame)
	service := r.fleet.Service(vip.String())
	client := netip.MustParseAddrPort("10.9.0.1:1234")
	if vip.Is6() {
		client = netip.MustParseAddrPort("[fd09::1]:1234")
	}
	hash := cookie.FlowHash(cookie.ServiceKey(r.fleet.Keys.Cookie[1], vip, service.Protocol), client, servicePort)
	value := out[tcp+20+at+2:]
	clock := binary.BigEndian.Uint32(value) + 2 // after the handshake, and after the connection
	marked := clock<<service.CookieBits | uint32(cookie.Encode(service.CookieBits, 1, serverID, hash))
	binary.BigEndian.PutUint32(value, marked)
	copy(out[tcp+16:], []byte{0, 0})
	end := tcp + int(out[tcp+12]>>4)*4 + len("some payload")
	binary.BigEndian.PutUint16(out[tcp+16:], tcpChecksum(vip, client.Addr(), out[tcp:end]))
	return out
}

// findTimestamp walks the options by RFC 9293 up to the first timestamp. What is malformed or authenticated (RFC 5925;
// Linux puts that option first) before it is not to be touched.
func findTimestamp(options []byte) (at int, ok bool) {
	for i := 0; i < len(options); {
		switch kind := options[i]; {
		case kind == 0:
			return 0, false
		case kind == 1:
			i++
			continue
		case i+2 > len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options) || kind == 29:
			return 0, false
		case kind == 8:
			return i, options[i+1] == 10
		}
		i += int(options[i+1])
	}
	return 0, false
}

var (
	timestampOption = []byte{8, 10, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0}
	mss             = []byte{2, 4, 5, 0xb4}
	sackOK          = []byte{4, 2}
	nop             = []byte{1}
	windowScale     = []byte{3, 3, 7}
	sack            = []byte{5, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	authentication  = []byte{29, 16, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
)

func TestTimestampIsFoundInEveryOrderOfOptions(t *testing.T) {
	r := newRig(t, rigOptions{})
	for name, parts := range map[string][][]byte{
		"NOP NOP TS":              {nop, nop, timestampOption},
		"MSS SACKOK TS NOP WS":    {mss, sackOK, timestampOption, nop, windowScale},
		"MSS NOP WS NOP NOP TS":   {mss, nop, windowScale, nop, nop, timestampOption, sackOK},
		"MSS NOP WS SACKOK TS":    {mss, nop, windowScale, sackOK, timestampOption},
		"MSS NOP NOP TS":          {mss, nop, nop, timestampOption},
		"TS first, odd after NOP": {nop, timestampOption},
		"TS after SACK":           {nop, nop, sack, timestampOption},
		"NOP NOP TS NOP NOP SACK": {nop, nop, timestampOption, nop, nop, sack},
		"none":                    {mss, sackOK},
		"authenticated":           {authentication, nop, nop, timestampOption},
		"cut off":                 {nop, nop, nop, timestampOption[:9]},
	} {
		for _, vip := range r.vips {
			r.compare(fmt.Sprint(name, " ", vip), vip, bytes.Join(parts, nil))
		}
	}
}

// compare checks the program against the reference for one string of options.
func (r *rig) compare(name string, vip netip.Addr, options []byte) {
	r.t.Helper()
	frame := answerWith(r.t, vip, options)
	want := r.reference(frame, vip)
	if want == nil {
		want = frame
	}
	if got := r.egress(frame); !bytes.Equal(got, want) {
		r.t.Errorf("%s: options %x\n got %x\nwant %x", name, options, got, want)
	}
}

func TestRandomOptionsAreReadAsTheReferenceReadsThem(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("BALLAST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, rigOptions{})
	pool := [][]byte{timestampOption, mss, sackOK, nop, nop, nop, windowScale, sack, authentication, {0}, {8, 9}, {30, 4, 1, 1}}
	for range 3000 {
		var options []byte
		for len(options) < 40 && random.IntN(6) > 0 {
			options = append(options, pool[random.IntN(len(pool))]...)
		}
		options = options[:min(len(options), 40)]
		if len(options) > 0 && random.IntN(4) == 0 {
			options[random.IntN(len(options))] = byte(random.Uint32())
		}
		r.compare("random", r.vips[random.IntN(2)], options)
		if t.Failed() {
			return
		}
	}
}
