package preload

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
)

// nodeServer says its port.
const nodeServer = `
const tls = require('tls'), fs = require('fs')
const [, module, file, cert, key] = process.argv
const server = tls.createServer({ cert: fs.readFileSync(cert), key: fs.readFileSync(key), sessionIdContext: 'web' }, socket => {
  socket.on('error', () => {})
  socket.once('data', () => socket.end('hello'))
})
server.on('tlsClientError', () => {})
require(module).install(server, file)
server.listen(0, '127.0.0.1', () => console.log('port ' + server.address().port))
`

// listening waits until a server has said its port.
func (s *server) listening(t testing.TB) *server {
	t.Helper()
	await.True(t, "the server listens", func() bool {
		_, port, found := strings.Cut(s.process.said.String(), "port ")
		s.address = "127.0.0.1:" + strings.TrimSpace(port)
		return found && strings.HasSuffix(port, "\n")
	})
	return s
}

func serveNode(t testing.TB, id uint16) *server {
	t.Helper()
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	module, err := filepath.Abs("../../examples/session/ballast_tickets.js")
	if err != nil {
		t.Fatal(err)
	}
	s := (&server{file: filepath.Join(dir, "web.json"), say: askHTTP}).rotate(t, id, 1)
	s.process = start(t, nil, installed(t, "node"), "-e", nodeServer, module, s.file, cert, key)
	return s.listening(t)
}

func TestTicketsOfTheExampleForNodeNameTheirServer(t *testing.T) { followsAsAnExample(t, serveNode) }

func TestSessionsResumeAtEachServerOfAnExampleWhileKeysOfControllersRotate(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("they look at their files once a second: set BALLAST_LONG=1")
	}
	for name, serve := range map[string]func(testing.TB, uint16) *server{"node": serveNode, "rustls": serveRustls} {
		t.Run(name, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, version uint16) {
				resumesByKeysOfControllers(t, version, serve(t, 7), serve(t, 65535))
			})
		})
	}
}

// followsAsAnExample checks a server that looks at its file once a second.
func followsAsAnExample(t *testing.T, serve func(t testing.TB, id uint16) *server) {
	eachVersion(t, func(t *testing.T, version uint16) {
		first, second, c := serve(t, 7), serve(t, 65535), client(version)
		first.want(t, c, false, nobody, 1)
		for range 3 {
			first.want(t, c, true, 7, 1)
		}
		second.want(t, c, true, 7, 1)
		second.want(t, c, true, 65535, 1)
		slow, damaged := client(version), client(version)
		second.want(t, slow, false, nobody, 1)
		second.want(t, damaged, false, nobody, 1)
		kept, _ := damaged.ClientSessionCache.Get(damaged.ServerName)
		ticket, state, err := kept.ResumptionState()
		if err != nil {
			t.Fatal(err)
		}
		ticket[len(ticket)/2] ^= 1
		changed, err := tls.NewResumptionState(ticket, state)
		if err != nil {
			t.Fatal(err)
		}
		damaged.ClientSessionCache.Put(damaged.ServerName, changed)
		second.want(t, damaged, false, 65535, 1)

		for epoch := byte(2); epoch <= 3; epoch++ {
			second.rotate(t, 65535, epoch)
			resumed := true
			await.True(t, "tickets are by the new key", func() bool {
				did, hello, err := second.visit(c)
				if err != nil {
					t.Fatal(err)
				}
				resumed = resumed && did
				return named(hello.Session(), epoch) == 65535
			})
			if !resumed {
				t.Errorf("a session ended in epoch %d", epoch)
			}
		}
		second.want(t, slow, false, 65535, 1)
		if err := os.Remove(second.file); err != nil {
			t.Fatal(err)
		}
		second.want(t, c, true, 65535, 3)
	})
}

// For make test-long: test/rustls makes the program.
func TestTicketsOfTheExampleForRustlsNameTheirServer(t *testing.T) {
	followsAsAnExample(t, serveRustls)
}

func serveRustls(t testing.TB, id uint16) *server {
	t.Helper()
	program := os.Getenv("BALLAST_RUSTLS")
	if program == "" {
		t.Skip("no program: BALLAST_RUSTLS=$(test/rustls)")
	}
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	s := (&server{file: filepath.Join(dir, "web.json"), say: askHTTP}).rotate(t, id, 1)
	s.process = start(t, nil, program, s.file, cert, key)
	return s.listening(t)
}
