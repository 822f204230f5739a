package check

import (
	"bytes"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxDatagram is the largest answer that is read, in bytes.
const maxDatagram = 64 << 10

// checkUDP waits for an answer that is as the health expects it. An ICMP error ends the wait.
func checkUDP(conn net.Conn, h *model.Health) error {
	answer, err := readDatagram(conn, "wait for an answer by UDP")
	if err != nil {
		return err
	}
	if prefix := model.CheckBytes(h.Expect); !bytes.HasPrefix(answer, prefix) {
		return fmt.Errorf("the answer begins with %q: expected %q", answer[:min(len(answer), len(prefix))], prefix)
	}
	if part := model.CheckBytes(h.Contains); !bytes.Contains(answer, part) {
		return fmt.Errorf("the answer of %d bytes does not contain %q", len(answer), part)
	}
	return nil
}

// dnsQuery is the query of a check by DNS (RFC 1035 4.1), under that id.
func dnsQuery(h *model.Health, id uint16) []byte {
	name, kind, err := model.DNSQuestion(h.Query)
	if err != nil {
		panic(err) // validation has refused it
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := query.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

// checkDNS waits for the answer to a query, and compares its response code.
func checkDNS(conn net.Conn, h *model.Health, query []byte) error {
	datagram, err := readDatagram(conn, "wait for a DNS answer")
	if err != nil {
		return err
	}
	var asked, answer dnsmessage.Message
	if err := asked.Unpack(query); err != nil {
		panic(err)
	}
	if err := answer.Unpack(datagram); err != nil {
		return fmt.Errorf("read the DNS answer: %w", err)
	}
	if !answer.Response || answer.ID != asked.ID || len(answer.Questions) != 1 || !sameQuestion(&answer.Questions[0], &asked.Questions[0]) {
		return fmt.Errorf("the datagram is no answer to the query %s", h.Query)
	}
	want := model.DNSCode(h.RCode)
	switch {
	case answer.RCode != want:
		return fmt.Errorf("DNS response code %s: expected %s", model.DNSCodeName(answer.RCode), model.DNSCodeName(want))
	case want == dnsmessage.RCodeSuccess && len(answer.Answers) == 0 && !answer.Truncated:
		return fmt.Errorf("the DNS answer has no record for %s", h.Query)
	}
	return nil
}

// sameQuestion compares questions; the case of names says nothing (RFC 4343).
func sameQuestion(a, b *dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && strings.EqualFold(a.Name.String(), b.Name.String())
}

func readDatagram(conn net.Conn, doing string) ([]byte, error) {
	answer := make([]byte, maxDatagram)
	n, err := conn.Read(answer)
	if err != nil {
		return nil, failure(doing, err)
	}
	return answer[:n], nil
}
