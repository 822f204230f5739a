package quicgo

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/ballast-lb/ballast/internal/algo/quiclb"
	"github.com/ballast-lb/ballast/internal/await"
	ids "github.com/ballast-lb/ballast/pkg/quiclb"
)

// deadline is one that only a failure reaches.
const deadline = time.Minute

func example() ids.File {
	return ids.File{Service: "web", Config: 3, Algorithm: "single-pass", Key: bytes.Repeat([]byte{3}, 16), ServerID: ids.Secret{0, 7}, NonceLength: 14,
		ResetKey: bytes.Repeat([]byte{7}, 32), TokenKey: bytes.Repeat([]byte{1}, 32)}
}

// another is the file of another server of the service.
func another() ids.File {
	other := example()
	other.ServerID, other.ResetKey = ids.Secret{0, 8}, bytes.Repeat([]byte{8}, 32)
	return other
}

// put replaces a file as the agent does, by rename.
func put(t testing.TB, path string, file ids.File) {
	t.Helper()
	text, err := json.Marshal(file)
	if err := errors.Join(err, os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, file ids.File) (g *ids.Generator, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "web.json")
	put(t, path, file)
	g, err := ids.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return g, path
}

func opened(t testing.TB, file ids.File) *ids.Generator {
	g, _ := open(t, file)
	return g
}

// names tells why an id is not one of that file.
func names(id []byte, file ids.File) error {
	c := quiclb.Config{ID: file.Config, Key: [16]byte(file.Key), ServerIDLength: len(file.ServerID), NonceLength: file.NonceLength}
	server, err := c.Decode(id)
	if err == nil && !bytes.Equal(server, file.ServerID) {
		err = fmt.Errorf("names server %x", server)
	}
	if err != nil {
		return fmt.Errorf("id %x: %w, want server %x in config %d", id, err, []byte(file.ServerID), file.Config)
	}
	return nil
}

// wire is a client's socket that remembers its packets. Its server may be changed; the client does not see that.
type wire struct {
	net.PacketConn
	peer net.Addr // as the client knows it

	mutex          sync.Mutex
	to             net.Addr // where packets go; nil: to the peer
	sent, received [][]byte
	answers        map[string]int // packets by who really sent them
}

func (w *wire) WriteTo(packet []byte, _ net.Addr) (int, error) {
	w.mutex.Lock()
	w.sent = append(w.sent, append([]byte(nil), packet...))
	to := w.to
	w.mutex.Unlock()
	if to == nil {
		to = w.peer
	}
	return w.PacketConn.WriteTo(packet, to)
}

func (w *wire) ReadFrom(into []byte) (int, net.Addr, error) {
	n, from, err := w.PacketConn.ReadFrom(into)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err == nil {
		w.received = append(w.received, append([]byte(nil), into[:n]...))
		w.answers[from.String()]++
	}
	return n, w.peer, err
}

func (w *wire) turnTo(server net.Addr) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.to = server
}

// answered tells whether a packet has come from a server.
func (w *wire) answered(server net.Addr) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.answers[server.String()] > 0
}

// ids are those that the server gave itself in long headers, and those that the client put into short ones (RFC 8999 section 5).
func (w *wire) ids(length int) (given, used [][]byte) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, packet := range w.received {
		if packet[0]&0x80 != 0 {
			source := packet[6+packet[5]:]
			given = append(given, source[1:1+source[0]])
		}
	}
	for _, packet := range w.sent {
		if packet[0]&0x80 == 0 {
			used = append(used, packet[1:1+length])
		}
	}
	return given, used
}

func listen(t *testing.T, address string) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// serve echoes streams by ids of the generator.
func serve(t *testing.T, socket net.PacketConn, g *ids.Generator, retry bool) {
	t.Helper()
	transport := Transport(socket, g)
	transport.VerifySourceAddress = func(net.Addr) bool { return retry }
	t.Cleanup(func() { transport.Close() })
	https := httptest.NewUnstartedServer(nil)
	https.StartTLS()
	defer https.Close()
	listener, err := transport.Listen(&tls.Config{Certificates: https.TLS.Certificates, NextProtos: []string{"echo"}}, &quic.Config{MaxIdleTimeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			connection, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				for {
					stream, err := connection.AcceptStream(context.Background())
					if err != nil {
						return
					}
					go func() {
						_, _ = io.Copy(stream, stream)
						stream.Close()
					}()
				}
			}()
		}
	}()
}

// client is a connection, and what it sent and received.
type client struct {
	*quic.Conn
	wire *wire
}

func dial(t *testing.T, w *wire) client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	transport := &quic.Transport{Conn: w}
	t.Cleanup(func() { transport.Close() })
	connection, err := transport.Dial(ctx, w.peer, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}}, &quic.Config{MaxIdleTimeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	return client{connection, w}
}

// echo sends bytes and gets them back.
func (c client) echo() error {
	stream, err := c.OpenStream()
	if err != nil {
		return err
	}
	sent := make([]byte, 3000)
	if _, err := stream.Write(sent); err != nil {
		return err
	}
	stream.Close()
	got, err := io.ReadAll(stream)
	if err == nil && len(got) != len(sent) {
		err = fmt.Errorf("%d bytes of %d came back", len(got), len(sent))
	}
	return err
}

// named tells why not all ids on the wire name the server, and that there are some.
func (w *wire) named(want ids.File) error {
	given, used := w.ids(1 + len(want.ServerID) + want.NonceLength)
	if len(used) == 0 {
		return errors.New("no short header was sent")
	}
	for _, id := range append(given, used...) {
		if err := names(id, want); err != nil {
			return err
		}
	}
	return nil
}

func newWire(t *testing.T, server net.PacketConn) *wire {
	return &wire{PacketConn: listen(t, "127.0.0.1:0"), peer: server.LocalAddr(), answers: map[string]int{}}
}

func TestAllIDsOnTheWireNameTheServerAlsoWhenTheKeyChanges(t *testing.T) {
	g, path := open(t, example())
	socket := listen(t, "127.0.0.1:0")
	serve(t, socket, g, false)
	old := dial(t, newWire(t, socket))
	if err := errors.Join(old.echo(), old.wire.named(example())); err != nil {
		t.Fatal(err)
	}
	next := example()
	next.Config, next.Key = 4, bytes.Repeat([]byte{4}, 16)
	put(t, path, next)
	await.True(t, "the new key is used", func() bool {
		id, err := g.New()
		return err == nil && names(id, next) == nil
	})
	fresh := dial(t, newWire(t, socket))
	if err := errors.Join(fresh.echo(), fresh.wire.named(next)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(old.echo(), old.wire.named(example())); err != nil {
		t.Error(err)
	}
}

func TestAClientThatMigratesUsesAnotherIDOfTheSameServer(t *testing.T) {
	g, _ := open(t, example())
	socket := listen(t, "127.0.0.1:0")
	serve(t, socket, g, false)
	moving := dial(t, newWire(t, socket))
	if err := moving.echo(); err != nil {
		t.Fatal(err)
	}
	elsewhere := newWire(t, socket)
	transport := &quic.Transport{Conn: elsewhere}
	t.Cleanup(func() { transport.Close() })
	path, err := moving.AddPath(transport)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := errors.Join(path.Probe(ctx), path.Switch(), moving.echo(), elsewhere.named(example())); err != nil {
		t.Fatal(err)
	}
	_, before := moving.wire.ids(g.Length())
	_, after := elsewhere.ids(g.Length())
	if string(before[0]) == string(after[0]) {
		t.Errorf("id %x before and after", after[0])
	}
}

// Resets by a server that has never had the connection are not for the client: else one second of misrouting would end connections.
func TestARestartedServerResetsItsOwnConnectionsAndNoOtherDoes(t *testing.T) {
	socket, mine, others := listen(t, "127.0.0.1:0"), opened(t, example()), opened(t, another())
	serve(t, socket, mine, false)
	subject := dial(t, newWire(t, socket))
	if err := subject.echo(); err != nil {
		t.Fatal(err)
	}
	stream, err := subject.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	// What the client sends has to be longer than a reset (RFC 9000 section 10.3.3).
	arrives := func(server net.PacketConn) error {
		subject.wire.turnTo(server.LocalAddr())
		if _, err := stream.Write(make([]byte, 200)); err != nil {
			return err
		}
		await.True(t, "the server has answered", func() bool { return subject.wire.answered(server.LocalAddr()) })
		return nil
	}
	stranger := listen(t, "127.0.0.1:0")
	serve(t, stranger, others, false)
	if err := arrives(stranger); err != nil {
		t.Fatal(err)
	}
	subject.wire.turnTo(nil)
	if err := subject.echo(); err != nil {
		t.Fatalf("after a reset by another server: %v", err)
	}
	restarted := listen(t, "127.0.0.1:0")
	serve(t, restarted, mine, false)
	if err := arrives(restarted); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the connection has ended", func() bool { return subject.Context().Err() != nil })
	var reset *quic.StatelessResetError
	if err := context.Cause(subject.Context()); !errors.As(err, &reset) {
		t.Errorf("%v ended the connection", err)
	}
}

// retryThen is a wire whose packets go to another server once the first one has asked to try again.
type retryThen struct {
	*wire
	then net.Addr
}

func (r retryThen) ReadFrom(into []byte) (int, net.Addr, error) {
	n, from, err := r.wire.ReadFrom(into)
	if err == nil && into[0]&0xf0 == 0xf0 { // Retry of QUIC version 1 (RFC 9000 section 17.2.5)
		r.turnTo(r.then)
	}
	return n, from, err
}

func TestATokenOfOneServerIsGoodForAnother(t *testing.T) {
	first, second := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	serve(t, first, opened(t, example()), true)
	serve(t, second, opened(t, another()), true)
	w := newWire(t, first)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	transport := &quic.Transport{Conn: retryThen{w, second.LocalAddr()}}
	t.Cleanup(func() { transport.Close() })
	connection, err := transport.Dial(ctx, w.peer, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}}, &quic.Config{MaxIdleTimeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	if err := (client{connection, w}).echo(); err != nil {
		t.Fatal(err)
	}
	given, used := w.ids(17)
	if err := errors.Join(names(given[0], example()), names(used[0], another())); err != nil {
		t.Error(err)
	}
}
