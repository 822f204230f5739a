package server_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
)

// forge sends a segment to the server as if it were of a connection from this port.
func (r *rig) forge(vip netip.Addr, port uint16, echo uint32, more func(*layers.TCP), payload string) {
	r.t.Helper()
	network, source := "ip4:tcp", netip.MustParseAddr("10.9.0.1")
	var ip gopacket.NetworkLayer = &layers.IPv4{Protocol: layers.IPProtocolTCP, SrcIP: source.AsSlice(), DstIP: vip.AsSlice()}
	if vip.Is6() {
		network, source = "ip6:tcp", netip.MustParseAddr("fd09::1")
		ip = &layers.IPv6{NextHeader: layers.IPProtocolTCP, SrcIP: source.AsSlice(), DstIP: vip.AsSlice()}
	}
	timestamps := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 1), echo)
	tcp := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: servicePort, Seq: 1, Ack: 1, ACK: true, Window: 1000, Options: []layers.TCPOption{
		{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: timestamps}}}
	if more != nil {
		more(tcp)
	}
	buffer := gopacket.NewSerializeBuffer()
	progtest.Check(r.t, errors.Join(tcp.SetNetworkLayerForChecksum(ip),
		gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, tcp, gopacket.Payload(payload))))
	progtest.Check(r.t, r.client.Do(func() error {
		raw, err := net.ListenPacket(network, source.String())
		if err != nil {
			return err
		}
		_, err = raw.WriteTo(buffer.Bytes(), &net.IPAddr{IP: vip.AsSlice()})
		return errors.Join(err, raw.Close())
	}))
}

// own is an echo that carries the server's cookie for a connection from this port.
func (r *rig) own(vip netip.Addr, port uint16) uint32 {
	client := netip.MustParseAddr("10.9.0.1")
	if vip.Is6() {
		client = netip.MustParseAddr("fd09::1")
	}
	key := cookie.ServiceKey(r.fleet.Keys.Cookie[1], vip, model.ProtocolTCP)
	bits := r.fleet.Services[0].CookieBits
	return 5<<bits | uint32(cookie.Encode(bits, 1, serverID, cookie.FlowHash(key, netip.AddrPortFrom(client, port), servicePort)))
}

func TestAnACKThatNothingExplainsIsIgnoredOnce(t *testing.T) {
	r := newRig(t, rigOptions{})
	var listeners []net.Listener
	for _, vip := range r.vips {
		listeners = append(listeners, r.listener(vip, sharing()))
	}
	resets := r.count("egress_reset_no_timestamp")
	port := uint16(30000)
	send := func(what string, vip netip.Addr, echo uint32, more func(*layers.TCP), payload, verdict string) {
		t.Helper()
		before, answers := r.count(verdict), verdict != "ingress_dropped_stray"
		r.forge(vip, port, echo, more, payload)
		r.await(what+": "+verdict, func() bool { return r.count(verdict) == before+1 })
		if answers {
			resets++
		}
		r.await(what+": its answer", func() bool { return r.count("egress_reset_no_timestamp") >= resets })
		if have := r.count("egress_reset_no_timestamp"); have != resets {
			t.Errorf("%s: %d resets, want %d", what, have, resets)
		}
	}
	another := func(vip netip.Addr) (echo uint32) { port++; return r.own(vip, port) ^ 1 }
	for _, vip := range r.vips {
		echo := another(vip)
		send("the first", vip, echo, nil, "", "ingress_dropped_stray")
		send("the second", vip, echo+1<<20, nil, "", "ingress_bad_cookie")
		send("with data", vip, another(vip), nil, "x", "ingress_bad_cookie")
		send("a FIN", vip, another(vip), func(tcp *layers.TCP) { tcp.FIN = true }, "", "ingress_bad_cookie")
		send("of this server", vip, another(vip)^1, nil, "", "ingress_restored_syn_cookie")
		send("of another connection", vip, another(vip), nil, "", "ingress_dropped_stray")
	}
	for i, vip := range r.vips {
		progtest.Check(t, listeners[i].Close())
		echo := another(vip)
		send("the first, and nobody listens", vip, echo, nil, "", "ingress_dropped_stray")
		send("the second, and nobody listens", vip, echo, nil, "", "ingress_no_socket")
		send("of this server, and nobody listens", vip, another(vip)^1, nil, "", "ingress_no_socket")
	}
}
