package sessionticket

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/hellotest"
)

var versions = map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13}

// keysOf are those of an epoch.
func keysOf(epoch byte) (id, ticket Secret) {
	return bytes.Repeat([]byte{epoch}, keyLength), bytes.Repeat([]byte{epoch, 1}, keyLength/2)
}

// fileOf is what the agent writes for a server in an epoch; in epoch 1 there is none before.
func fileOf(server uint16, epoch byte) *File {
	file := &File{Service: "web", ServerID: server}
	file.IDKey, file.TicketKey = keysOf(epoch)
	if epoch > 1 {
		file.IDKeyBefore, file.TicketKeyBefore = keysOf(epoch - 1)
	}
	return file
}

// put replaces a file as the agent does.
func put(t testing.TB, path string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err := errors.Join(err, os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// server is an application, and the file that it follows.
type server struct {
	*Tickets
	path   string
	config *tls.Config
}

// certificate is httptest's, of example.com.
var certificate = sync.OnceValue(func() tls.Certificate {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return s.TLS.Certificates[0]
})

func serve(t testing.TB, id uint16, epoch byte) *server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.json")
	put(t, path, fileOf(id, epoch))
	tickets, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{tickets, path, &tls.Config{Certificates: []tls.Certificate{certificate()}}}
	tickets.Configure(s.config)
	return s
}

// rotate lets a server's file be the one of an epoch.
func (s *server) rotate(t testing.TB, id uint16, epoch byte) {
	t.Helper()
	put(t, s.path, fileOf(id, epoch))
	s.file.Again()
}

func client(version uint16) *tls.Config {
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(certificate().Certificate[0])
	if err != nil {
		panic(err)
	}
	roots.AddCert(leaf)
	return &tls.Config{ServerName: "example.com", RootCAs: roots, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
}

// recorded is a client's end that remembers what it has sent.
type recorded struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorded) Write(sent []byte) (int, error) {
	r.sent.Write(sent)
	return r.Conn.Write(sent)
}

// connect makes one connection, and returns whether it was resumed, and what the client showed. It ends after the client's next ticket has come.
func connect(server, client *tls.Config) (resumed bool, hello *hellotest.Hello, err error) {
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() {
		conn := tls.Server(far, server)
		_, err := conn.Write([]byte("hello"))
		served <- errors.Join(err, conn.Close())
	}()
	wire := &recorded{Conn: near}
	conn := tls.Client(wire, client)
	said, err := io.ReadAll(conn)
	err = errors.Join(err, near.Close())
	if bad := <-served; bad != nil || err != nil || string(said) != "hello" {
		return false, nil, fmt.Errorf("client has read %q: %w, %w", said, err, bad)
	}
	hello, err = hellotest.Read(wire.sent.Bytes())
	return conn.ConnectionState().DidResume, hello, err
}

// want makes a connection, and checks whether it is resumed by a ticket of a server and an epoch (server 0: none is shown).
func want(t *testing.T, s *server, c *tls.Config, resumed bool, server uint16, epoch byte) (name [sessionid.Length]byte) {
	t.Helper()
	did, hello, err := connect(s.config, c)
	if err != nil || did != resumed {
		t.Fatalf("resumed %v, not %v: %v", did, resumed, err)
	}
	ticket := hello.Session()
	if server == 0 {
		if len(hello.Identity) != 0 || len(hello.Ticket) != 0 {
			t.Fatalf("a ticket is shown: %x", ticket)
		}
		return name
	}
	if len(ticket) < sessionid.Length {
		t.Fatalf("no ticket is shown: %+v", hello)
	}
	id, _ := keysOf(epoch)
	name = [sessionid.Length]byte(ticket)
	if got, ok := sessionid.Open(sessionid.Load([keyLength]byte(id)), name); !ok || got != server {
		t.Fatalf("the ticket names %d, %v in epoch %d, not %d", got, ok, epoch, server)
	}
	return name
}

func eachVersion(t *testing.T, run func(t *testing.T, version uint16)) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) { run(t, version) })
	}
}

func TestAClientShowsWhichServerItsTicketIsOf(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		s, c := serve(t, 7, 1), client(version)
		want(t, s, c, false, 0, 1)
		seen := map[[sessionid.Length]byte]bool{}
		for range 5 { // the new ticket each time, in TLS 1.2 too
			name := want(t, s, c, true, 7, 1)
			if seen[name] {
				t.Fatalf("%x is shown twice", name)
			}
			seen[name] = true
		}
	})
}

func TestASessionOfAnotherServerResumesAndIsThenOfThisOne(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		first, second, c := serve(t, 7, 1), serve(t, 65535, 1), client(version)
		want(t, first, c, false, 0, 1)
		want(t, second, c, true, 7, 1)
		want(t, second, c, true, 65535, 1)
		want(t, first, c, true, 65535, 1)
	})
}

// Promise: A session begins again when no cookie key reads the name in its ticket or no ticket key reads the
// ticket.
func TestSessionsOutliveOneRotationAndEndQuietlyWithTheNext(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		s, c, slow := serve(t, 7, 1), client(version), client(version)
		want(t, s, c, false, 0, 1)
		want(t, s, slow, false, 0, 1)
		s.rotate(t, 7, 2)
		want(t, s, c, true, 7, 1)
		want(t, s, c, true, 7, 2)
		s.rotate(t, 7, 3)
		want(t, s, c, true, 7, 2)
		want(t, s, slow, false, 7, 1)
		want(t, s, slow, true, 7, 3)
		if err := s.Err(); err != nil {
			t.Error(err)
		}
	})
}

// Controllers list the keys, in use first: each reads tickets, of both epochs of names, and crypto/tls gives clients new ones each time.
func TestTicketsByEachListedKeyResume(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		s := serve(t, 7, 2)
		list := func(keys ...byte) {
			t.Helper()
			file := fileOf(7, 2)
			for _, key := range keys {
				file.TicketKeys = append(file.TicketKeys, bytes.Repeat([]byte{100 + key}, keyLength))
			}
			file.TicketKey, file.TicketKeyBefore = file.TicketKeys[0], file.TicketKeys[0]
			put(t, s.path, file)
			s.file.Again()
		}
		list(1, 2)
		first, second, slow := client(version), client(version), client(version)
		for _, c := range []*tls.Config{first, second, slow} {
			want(t, s, c, false, 0, 2)
		}
		list(2, 3, 1)
		want(t, s, first, true, 7, 2)
		list(3, 4, 2, 1)
		want(t, s, second, true, 7, 2)
		list(3, 4, 2)
		want(t, s, first, true, 7, 2) // it was by 2
		want(t, s, slow, false, 7, 2) // it was by 1
		if err := s.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A server whose id has changed goes on with its sessions.
func TestTheServersIDIsFollowed(t *testing.T) {
	s, c := serve(t, 7, 1), client(tls.VersionTLS13)
	want(t, s, c, false, 0, 1)
	s.rotate(t, 8, 1)
	want(t, s, c, true, 7, 1)
	want(t, s, c, true, 8, 1)
}

// issue returns a ticket of a server, and what makes sessions of tickets.
func issue(t testing.TB, s *server) (ticket []byte) {
	t.Helper()
	c := client(tls.VersionTLS13)
	for range 2 {
		_, hello, err := connect(s.config, c)
		if err != nil {
			t.Fatal(err)
		}
		ticket = hello.Identity
	}
	return ticket
}

// Names begin with 64 random bits, and no other byte of a ticket is like that of the next one.
func TestTicketsOfOneSessionHaveNothingInCommon(t *testing.T) {
	s := serve(t, 7, 1)
	session, err := s.unwrap(issue(t, s), tls.ConnectionState{})
	if err != nil || session == nil {
		t.Fatal(session, err)
	}
	first, err := s.wrap(tls.ConnectionState{}, session)
	if err != nil {
		t.Fatal(err)
	}
	const tickets = 64
	equal := make([]int, len(first))
	for range tickets {
		next, err := s.wrap(tls.ConnectionState{}, session)
		if err != nil || len(next) != len(first) {
			t.Fatalf("%d bytes, not %d: %v", len(next), len(first), err)
		}
		for i := range next {
			if next[i] == first[i] {
				equal[i]++
			}
		}
	}
	for i, n := range equal { // one in 256 is by chance
		if n > tickets/4 {
			t.Errorf("byte %d is the same in %d of %d", i, n, tickets)
		}
	}
}

// What somebody makes of a ticket leads to a full handshake and never ends a connection.
func TestDamagedTicketsAreNotResumed(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	s := serve(t, 7, 1)
	good := issue(t, s)
	for range 2000 {
		ticket := bytes.Clone(good)
		if draw.IntN(2) == 0 {
			ticket = ticket[:draw.IntN(len(ticket))]
		} else {
			ticket[draw.IntN(len(ticket))] ^= 1 << draw.IntN(8)
		}
		if session, err := s.unwrap(ticket, tls.ConnectionState{}); session != nil || err != nil {
			t.Fatalf("%x: %v, %v", ticket, session, err)
		}
	}
	// a name of ours in front of a session by another key, and of one that is none
	name := [sessionid.Length]byte(good)
	for _, key := range [][]byte{make([]byte, keyLength), s.file.Current().epochs[0].sessions[0]} {
		aead, err := aead(key, name)
		if err != nil {
			t.Fatal(err)
		}
		if session, err := s.unwrap(aead.Seal(name[:], nil, []byte("no session"), name[:]), tls.ConnectionState{}); session != nil || err != nil {
			t.Errorf("%v, %v", session, err)
		}
	}
}

func FuzzTickets(f *testing.F) {
	s := serve(f, 7, 2)
	f.Add(issue(f, s))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, ticket []byte) {
		if _, err := s.unwrap(ticket, tls.ConnectionState{}); err != nil {
			t.Fatal(err)
		}
	})
}

// A server that has begun goes on, whatever becomes of its file.
func TestADamagedFileChangesNothing(t *testing.T) {
	s, c := serve(t, 7, 1), client(tls.VersionTLS13)
	want(t, s, c, false, 0, 1)
	for _, content := range []any{nil, "web", &File{}, map[string]int{"server_id": 65536}} {
		put(t, s.path, content)
		s.file.Again()
		want(t, s, c, true, 7, 1)
		if s.Err() == nil || !strings.Contains(s.Err().Error(), s.path) {
			t.Errorf("after %v: %v", content, s.Err())
		}
	}
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	s.file.Again()
	want(t, s, c, true, 7, 1)
	s.rotate(t, 7, 2)
	want(t, s, c, true, 7, 1)
	want(t, s, c, true, 7, 2)
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

func TestWhatIsWrongWithAFileIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	if _, err := Open(path); !os.IsNotExist(err) {
		t.Error(err)
	}
	for says, change := range map[string]func(*File){
		"server_id is 0":                  func(f *File) { f.ServerID = 0 },
		"31 and 32 bytes":                 func(f *File) { f.IDKey = f.IDKey[1:] },
		"32 and 0 bytes":                  func(f *File) { f.TicketKey = nil },
		"id_key_before and":               func(f *File) { f.IDKeyBefore = nil },
		"32 and 33 bytes":                 func(f *File) { f.TicketKeyBefore = append(f.TicketKeyBefore, 0) },
		"one of ticket_keys has 31 bytes": func(f *File) { f.TicketKeys = []Secret{f.TicketKey, f.TicketKey[1:]} },
	} {
		file := fileOf(7, 2)
		change(file)
		put(t, path, file)
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	s := serve(t, 7, 2)
	key, _ := keysOf(2)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		said := fmt.Sprintf(verb+" "+verb, s.Tickets, *fileOf(7, 2))
		for _, secret := range []string{fmt.Sprintf("%x", []byte(key[:4])), "2 2 2 2", "0x2, 0x2"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: %s", verb, said)
			}
		}
	}
}

func TestManyMayConnectAtOnceWhileKeysChange(t *testing.T) {
	s := serve(t, 7, 1)
	var group sync.WaitGroup
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13, tls.VersionTLS13} {
		group.Go(func() {
			c := client(version)
			for i := range 10 {
				if resumed, _, err := connect(s.config, c); err != nil || resumed != (i > 0) {
					t.Errorf("connection %d resumed %v: %v", i, resumed, err)
				}
				if s.Err() != nil {
					t.Error(s.Err())
				}
			}
		})
	}
	s.rotate(t, 7, 2) // once: no session ends with it
	group.Wait()
}
