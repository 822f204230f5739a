package check

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ballast-lb/ballast/internal/model"
)

// datagramServer is the address of a server that answers each datagram by f.
func datagramServer(t *testing.T, f func(question []byte) []byte) string {
	t.Helper()
	socket := bind(t)
	go func() {
		question := make([]byte, maxDatagram)
		for {
			n, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo(f(question[:n]), from)
		}
	}()
	return socket.LocalAddr().String()
}

func TestAServerByUDPIsHealthyWhenItAnswersAsExpected(t *testing.T) {
	echo := datagramServer(t, func(question []byte) []byte { return append([]byte("re: "), question...) })
	p := New(Options{})
	for _, test := range []struct{ send, expect, contains, want string }{
		{"ping", "", "", ""},
		{"hex:70696e67", "re: ping", "", ""},
		{"ping", "hex:72653a", "ping", ""},
		{"ping", "pong", "", `the answer begins with "re: ": expected "pong"`},
		{"ping", "", "hex:ff", `the answer of 8 bytes does not contain "\xff"`},
	} {
		expect(t, p, target(echo, model.Health{Check: model.CheckUDP, Send: test.send, Expect: test.expect, Contains: test.contains}), test.want)
	}
}

// Public: acassen/keepalived#2477 (a UDP server that is down stays up).
func TestAServerByUDPThatDoesNotAnswerIsUnhealthy(t *testing.T) {
	gone, p := bind(t), New(Options{})
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, p, target(gone.LocalAddr().String(), model.Health{Check: model.CheckUDP, Send: "ping"}), "wait for an answer by UDP: connection refused")
	silence := model.Health{Check: model.CheckUDP, Send: "ping", Timeout: model.Duration(100 * time.Millisecond)}
	expect(t, p, target(bind(t).LocalAddr().String(), silence), "wait for an answer by UDP: timed out")
}

func TestADNSServerIsHealthyWhenItAnswersTheQuery(t *testing.T) {
	server := func(change func(m *dnsmessage.Message)) string {
		return datagramServer(t, func(question []byte) []byte {
			var m dnsmessage.Message
			if err := m.Unpack(question); err != nil {
				return []byte{0}
			}
			m.Response = true
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
				Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}}}
			change(&m)
			packed, err := m.Pack()
			if err != nil {
				panic(err)
			}
			return packed
		})
	}
	no := "the datagram is no answer to the query Example.com A"
	for _, test := range []struct {
		change      func(m *dnsmessage.Message)
		rcode, want string
	}{
		{func(*dnsmessage.Message) {}, "", ""},
		{func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("example.COM.") }, "NOERROR", ""},
		{func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeRefused, nil }, "refused", ""},
		{func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeServerFailure, nil }, "", "DNS response code SERVFAIL: expected NOERROR"},
		{func(m *dnsmessage.Message) { m.Answers = nil }, "", "the DNS answer has no record for Example.com A"},
		{func(m *dnsmessage.Message) { m.ID++ }, "", no},
		{func(m *dnsmessage.Message) { m.Response = false }, "", no},
		{func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeMX }, "", no},
	} {
		expect(t, New(Options{}), target(server(test.change), model.Health{Check: model.CheckDNS, Query: "Example.com A", RCode: test.rcode}), test.want)
	}
	garbage := datagramServer(t, func([]byte) []byte { return []byte("no DNS") })
	if _, err := net.ResolveUDPAddr("udp", garbage); err != nil {
		t.Fatal(err)
	}
	_, err := New(Options{}).attempt(t.Context(), target(garbage, model.Health{Check: model.CheckDNS, Query: "a.example", Timeout: model.Duration(time.Second)}))
	if err == nil {
		t.Error("bytes that are no DNS message pass")
	}
}
