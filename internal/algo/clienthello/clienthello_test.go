package clienthello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// field is bytes behind their length.
func field(lengthBytes int, content ...[]byte) []byte {
	all := bytes.Join(content, nil)
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(all)))
	return append(length[8-lengthBytes:], all...)
}

func extension(kind uint16, content []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), field(2, content)...)
}

func psk(identities ...[]byte) []byte {
	var list []byte
	for _, identity := range identities {
		list = append(append(list, field(2, identity)...), 1, 2, 3, 4)
	}
	return extension(extensionPSK, append(field(2, list), field(2, field(1, make([]byte, 32)))...))
}

// hello is a record with a ClientHello. extensions nil: it has none.
func hello(session []byte, extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, bytes.Repeat([]byte{0xaa}, randomLength)...)
	body = append(body, field(1, session)...)
	body = append(body, field(2, []byte{0x13, 1, 0x13, 2})...)
	body = append(body, field(1, []byte{0})...)
	if extensions != nil {
		body = append(body, field(2, extensions...)...)
	}
	message := append([]byte{messageClientHello}, field(3, body)...)
	return append([]byte{contentHandshake, 3, 1}, field(2, message)...)
}

func name(first byte) (n [NameLength]byte) {
	for i := range n {
		n[i] = first + byte(i)
	}
	return n
}

func longer(n [NameLength]byte, more int) []byte {
	return append(n[:], bytes.Repeat([]byte{0xee}, more)...)
}

func TestTheSessionIsWhatTheClientOffersToResume(t *testing.T) {
	id, ticket, identity := name(10), name(60), name(110)
	other := extension(51, make([]byte, 1216)) // a key share
	for text, c := range map[string]struct {
		hello  []byte
		name   [NameLength]byte
		source Source
	}{
		"nothing":                     {hello(nil, other), [NameLength]byte{}, NoSession},
		"no extensions":               {hello(nil), [NameLength]byte{}, NoSession},
		"a session id alone":          {hello(longer(id, 16)), id, BySessionID},
		"a session id":                {hello(longer(id, 16), other), id, BySessionID},
		"a short session id":          {hello(id[:], other), [NameLength]byte{}, NoSession},
		"a ticket":                    {hello(longer(id, 16), extension(35, longer(ticket, 100)), other), ticket, ByTicket},
		"an empty ticket":             {hello(longer(id, 16), extension(35, nil), other), id, BySessionID},
		"an identity":                 {hello(longer(id, 16), other, extension(35, nil), psk(longer(identity, 180))), identity, ByPSK},
		"a ticket and an identity":    {hello(nil, extension(35, longer(ticket, 1)), psk(longer(identity, 0))), identity, ByPSK},
		"two identities":              {hello(nil, psk(longer(identity, 30), longer(ticket, 30))), identity, ByPSK},
		"an identity of another kind": {hello(nil, psk([]byte("sensor"))), [NameLength]byte{}, NoSession},
	} {
		got, source, outcome := Read(c.hello)
		if got != c.name || source != c.source || outcome != Complete {
			t.Errorf("%s: %x of %d, outcome %d", text, got, source, outcome)
		}
		for _, behind := range [][]byte{{0}, bytes.Repeat([]byte{23}, 5000)} { // early data
			if more, s, o := Read(append(bytes.Clone(c.hello), behind...)); more != got || s != source || o != outcome {
				t.Errorf("%s, with %d bytes behind it: %x of %d, outcome %d", text, len(behind), more, s, o)
			}
		}
		for i := range c.hello {
			part, s, o := Read(c.hello[:i])
			if o != More && (o != Complete || part != got || s != source) {
				t.Errorf("%s, the first %d of %d bytes: %x of %d, outcome %d", text, i, len(c.hello), part, s, o)
			}
		}
	}
}

func TestOtherDataIsNotHeldUp(t *testing.T) {
	whole := hello(longer(name(1), 0), psk(longer(name(2), 9)))
	changed := func(change func(b []byte)) []byte {
		b := bytes.Clone(whole)
		change(b)
		return b
	}
	var many [][]byte
	for i := range MostExtensions + 1 {
		many = append(many, extension(uint16(1000+i), nil))
	}
	for text, c := range map[string]struct {
		payload []byte
		outcome Outcome
	}{
		"HTTP":                          {[]byte("G"), NotTLS},
		"a record of SSL 2":             {changed(func(b []byte) { b[1] = 2 }), NotTLS},
		"another message":               {changed(func(b []byte) { b[5] = 2 }), NotTLS},
		"a hello in two records":        {changed(func(b []byte) { b[3], b[4] = 0, 100 }), NotTLS},
		"a session id too long":         {changed(func(b []byte) { b[43] = 33 }), Malformed},
		"suites beyond the message":     {changed(func(b []byte) { b[44+16] = 0x7f }), Malformed},
		"an extension past the message": {hello(nil, extension(1, nil)[:3]), Malformed},
		"too many extensions":           {hello(nil, many...), Malformed},
		"too long":                      {hello(nil, extension(21, make([]byte, MostBytes)), psk(longer(name(2), 9))), Malformed},
		"too long, as it says itself":   {hello(nil, extension(21, make([]byte, MostBytes)), psk(longer(name(2), 9)))[:100], Malformed},
		"long, and nothing to be seen":  {hello(nil, extension(21, make([]byte, MostBytes)))[:100], Complete},
	} {
		if _, source, outcome := Read(c.payload); outcome != c.outcome || (outcome == NotTLS && source != NoSession) {
			t.Errorf("%s: outcome %d of %d", text, outcome, source)
		}
	}
}

// firstFlight is what Go's client sends first.
func firstFlight(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tls.Client(client, config).Handshake()
	}()
	if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(server, rest); err != nil {
		t.Fatal(err)
	}
	server.Close()
	<-done
	return append(header, rest...)
}

func TestHellosOfGoAreRead(t *testing.T) {
	for _, most := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		// The session id is a random one: middleboxes want one.
		if _, source, outcome := Read(firstFlight(t, &tls.Config{ServerName: "web.test", MaxVersion: most})); outcome != Complete || source > BySessionID {
			t.Errorf("%s: outcome %d of %d", tls.VersionName(most), outcome, source)
		}
	}
}

// Whatever bytes: no panic, and more of them never makes less of what was complete.
func FuzzRead(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	f.Add(hello(longer(name(1), 16), extension(35, longer(name(2), 3)), psk(longer(name(3), 3))), uint16(77))
	f.Add(hello(nil), uint16(random.UintN(50)))
	f.Fuzz(func(t *testing.T, payload []byte, cut uint16) {
		name, source, outcome := Read(payload)
		part := payload[:min(int(cut), len(payload))]
		n, s, o := Read(part)
		if o == Complete && (n != name || s != source || outcome != Complete) {
			t.Fatalf("%x of %d, outcome %d; with more behind it %x of %d, outcome %d", n, s, o, name, source, outcome)
		}
		if o == NotTLS && outcome != NotTLS || outcome == NotTLS && o != NotTLS && o != More {
			t.Fatalf("outcome %d, with more behind it %d", o, outcome)
		}
	})
}
