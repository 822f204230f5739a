package check

import (
	"bytes"
	"errors"
	"net"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// QUIC of a version that nobody has makes a server list those that it has, without state or cryptography (RFC 9000 6, RFC 8999 6).
const (
	quicDatagram   = 1200 // bytes: of shorter ones servers take no notice (RFC 9000 14.1)
	quicIDs        = 8
	quicLongHeader = 0xc0
)

var (
	quicVersion     = []byte{0x1a, 0x2a, 0x3a, 0x4a} // of those that are reserved for that (RFC 9000 15)
	quicNegotiation = make([]byte, 4)                // the version of such an answer
	errNoVersions   = errors.New("what answers is no list of QUIC versions for this question")
)

// Hello is what is sent to a server before anything is read: the first datagram of a check by UDP; nil: the check is one by TCP.
func (t *Target) Hello(random func() float64) []byte {
	switch t.Health.Check {
	case model.CheckQUIC:
	case model.CheckUDP:
		return model.CheckBytes(t.Health.Send)
	case model.CheckDNS:
		return dnsQuery(&t.Health, uint16(random()*(1<<16)))
	default:
		return nil
	}
	ids := make([]byte, 2*quicIDs)
	for i := range ids {
		ids[i] = byte(random() * 256)
	}
	hello := slices.Concat([]byte{quicLongHeader}, quicVersion, []byte{quicIDs}, ids[:quicIDs], []byte{quicIDs}, ids[quicIDs:])
	return append(hello, make([]byte, quicDatagram-len(hello))...)
}

// checkQUIC waits for the answer to a hello.
func checkQUIC(conn net.Conn, hello []byte) error {
	answer := make([]byte, 2048)
	n, err := conn.Read(answer)
	if err != nil {
		return failure("wait for a list of QUIC versions", err)
	}
	// The answer has the ids of the question, each in the other's place.
	asked := 5 + 1 + quicIDs // where the client's own id begins
	want := slices.Concat(quicNegotiation, hello[asked:asked+1+quicIDs], hello[5:asked])
	if answer[0]&0x80 == 0 || !bytes.HasPrefix(answer[1:n], want) {
		return errNoVersions
	}
	return nil
}
