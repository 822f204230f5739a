package preload

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/hellotest"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// deadline is one that only a failure reaches.
const deadline = time.Minute

var versions = map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13}

// epochKeys are those of an epoch.
func epochKeys(epoch byte) (id, ticket sessionticket.Secret) {
	return bytes.Repeat([]byte{epoch}, 32), bytes.Repeat([]byte{epoch, 1}, 16)
}

// ticketFile is what the agent writes for a server in an epoch; in epoch 1 there is none before.
func ticketFile(server uint16, epoch byte) *sessionticket.File {
	file := &sessionticket.File{Service: "web", ServerID: server}
	file.IDKey, file.TicketKey = epochKeys(epoch)
	if epoch > 1 {
		file.IDKeyBefore, file.TicketKeyBefore = epochKeys(epoch - 1)
	}
	return file
}

// fleetFile is what the agent writes by controllers, with the keys of these epochs: tickets are made by the first.
func fleetFile(server uint16, epochs ...byte) *sessionticket.File {
	file := ticketFile(server, 1)
	for _, epoch := range epochs {
		_, key := epochKeys(100 + epoch)
		file.TicketKeys = append(file.TicketKeys, key)
	}
	file.TicketKey = file.TicketKeys[0]
	return file
}

// server is an application that is told by a file who it is.
type server struct {
	*process
	file, address string
	id            uint16 // see list
	// what a client says before TLS, and in it, so that the server answers and ends the connection
	before, say string
}

// nobody is the id in names that no key of the epoch opens.
const nobody = 0

// named returns the id of the server that a session's name is of.
func named(session []byte, epoch byte) uint16 {
	if len(session) < sessionid.Length {
		return nobody
	}
	key, _ := epochKeys(epoch)
	id, _ := sessionid.Open(sessionid.Load([32]byte(key)), [sessionid.Length]byte(session))
	return id
}

// pair makes a certificate, and returns the paths of it and its key.
var pair = sync.OnceValues(func() (cert, key []byte) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "example.com"}, DNSNames: []string{"example.com"}, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		panic(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
})

// certificate writes one to a folder, which all may read.
func certificate(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	certPEM, keyPEM := pair()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := errors.Join(os.WriteFile(cert, certPEM, 0o644), os.WriteFile(key, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// client is one that keeps the session of its last connection.
func client(version uint16) *tls.Config {
	return &tls.Config{ServerName: "example.com", InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
}

// recorded is a client's socket that remembers what it has sent.
type recorded struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorded) Write(sent []byte) (int, error) {
	r.sent.Write(sent)
	return r.Conn.Write(sent)
}

// visit makes one connection, and returns whether it was resumed, and what the client showed.
func (s *server) visit(c *tls.Config) (resumed bool, hello *hellotest.Hello, err error) {
	socket, err := net.Dial("tcp", s.address)
	if err != nil {
		return false, nil, err
	}
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(deadline))
	if s.before != "" {
		answer := make([]byte, 1)
		_, err := io.WriteString(socket, s.before)
		if _, bad := io.ReadFull(socket, answer); err != nil || bad != nil {
			return false, nil, errors.Join(err, bad)
		}
	}
	wire := &recorded{Conn: socket}
	conn := tls.Client(wire, c)
	if _, err := io.WriteString(conn, s.say); err != nil {
		return false, nil, err
	}
	// tickets of TLS 1.3 come with the answer; some servers end connections without notice
	if answer, err := io.ReadAll(conn); len(answer) == 0 {
		return false, nil, errors.Join(errors.New("no answer"), err)
	}
	hello, err = hellotest.Read(wire.sent.Bytes())
	return conn.ConnectionState().DidResume, hello, err
}

// want makes a connection, and checks whether it is resumed, by a session of which server and epoch.
func (s *server) want(t testing.TB, c *tls.Config, resumed bool, id uint16, epoch byte) *hellotest.Hello {
	t.Helper()
	did, hello, err := s.visit(c)
	if err != nil || did != resumed {
		t.Fatalf("resumed %v, not %v: %v; it has said: %s", did, resumed, err, s.process.said.String())
	}
	if got := named(hello.Session(), epoch); got != id {
		t.Fatalf("the client shows a session %.16x of %d in epoch %d, not %d", hello.Session(), got, epoch, id)
	}
	return hello
}

// list lets a server's file be as the agent writes it by controllers, with another id each time, and waits until the server goes by it.
func (s *server) list(t testing.TB, version uint16, epochs ...byte) {
	t.Helper()
	s.id++
	write(t, s.file, fleetFile(s.id, epochs...))
	c := client(version)
	await.Nil(t, "the server follows its file", func() error {
		_, hello, err := s.visit(c)
		if err == nil && named(hello.Session(), 1) != s.id {
			err = errors.New("it makes tickets by the file before")
		}
		return err
	})
}

// resumesByKeysOfControllers turns from one key to the next at two servers, one after the other, and lets clients go from each to the other at each step: each
// session resumes, until the key of its ticket is not listed any more.
func resumesByKeysOfControllers(t *testing.T, version uint16, a, b *server) {
	t.Helper()
	a.id, b.id = 100, 60000
	both := func() {
		t.Helper()
		for _, way := range [][2]*server{{a, b}, {b, a}} {
			c := client(version)
			way[0].want(t, c, false, nobody, 1)
			for i := range 3 {
				way[(i+1)%2].want(t, c, true, way[i%2].id, 1)
			}
		}
	}
	begin := func() (c *tls.Config, by uint16) {
		t.Helper()
		c = client(version)
		a.want(t, c, false, nobody, 1)
		return c, a.id
	}
	a.list(t, version, 1)
	b.list(t, version, 1)
	first, ofFirst := begin()
	late, ofLate := begin()
	both()
	b.list(t, version, 1, 2) // to be used next
	both()
	a.list(t, version, 1, 2)
	both()
	b.list(t, version, 2, 1) // B uses it first
	both()
	a.list(t, version, 2, 1)
	both()
	second, ofSecond := begin()
	a.list(t, version, 2, 3, 1)
	b.list(t, version, 2, 3, 1)
	a.list(t, version, 3, 2, 1) // A does
	both()
	b.list(t, version, 3, 2, 1)
	both()
	b.want(t, first, true, ofFirst, 1)
	b.list(t, version, 3, 2)
	b.want(t, late, false, ofLate, 1) // its key is dropped
	b.want(t, second, true, ofSecond, 1)
}

// up waits until a server answers.
func (s *server) up(t testing.TB) *server {
	t.Helper()
	await.Nil(t, "the server answers", func() error {
		_, _, err := s.visit(client(tls.VersionTLS13))
		return err
	})
	return s
}

// openFolder is a folder of the test that other users may enter.
func openFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}
