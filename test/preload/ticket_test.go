package preload

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/hellotest"
)

const askHTTP = "GET / HTTP/1.0\r\n\r\n"

// tickets returns the library, which looks at its file each time: tests need not wait for a second to pass.
func tickets(t testing.TB) string { return library(t, "ticket", "-DFOLLOW_SECONDS=0") }

// preloaded is the environment of a server.
func preloaded(library, file string) []string {
	return []string{"LD_PRELOAD=" + library, "BALLAST_TICKETS=" + file}
}

// serve starts `openssl s_server` as that server in the first epoch; as nobody, its file is not there.
func serve(t testing.TB, library string, id uint16, arguments ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "web.json")
	if id != nobody {
		write(t, file, ticketFile(id, 1))
	}
	return serveBy(t, library, file, arguments...)
}

// serveBy starts it with that file.
func serveBy(t testing.TB, library, file string, arguments ...string) *server {
	t.Helper()
	cert, key := certificate(t, t.TempDir())
	s := &server{file: file, say: askHTTP}
	s.process = start(t, preloaded(library, s.file), installed(t, "openssl"), append([]string{"s_server", "-accept", "127.0.0.1:0", "-cert", cert, "-key", key, "-www"}, arguments...)...)
	accept := regexp.MustCompile(`ACCEPT (127\.0\.0\.1:[0-9]+)`)
	await.True(t, "s_server listens", func() bool {
		found := accept.FindStringSubmatch(s.process.said.String())
		if found != nil {
			s.address = found[1]
		}
		return found != nil
	})
	return s
}

// rotate lets a server's file be that of an epoch.
func (s *server) rotate(t testing.TB, id uint16, epoch byte) *server {
	t.Helper()
	write(t, s.file, ticketFile(id, epoch))
	return s
}

// complained checks what a library has said.
func (p *process) complained(t testing.TB, want ...string) {
	t.Helper()
	lines := p.complaints()
	for i, line := range lines {
		if len(lines) != len(want) || !strings.Contains(line, want[i]) {
			t.Errorf("complaints %q, not %q", lines, want)
			return
		}
	}
	if len(lines) != len(want) {
		t.Errorf("complaints %q, not %q", lines, want)
	}
}

func eachVersion(t *testing.T, run func(t *testing.T, version uint16)) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, version)
		})
	}
}

func TestTicketsOfAProgramThatKnowsNothingNameItsServer(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		so := tickets(t)
		first, second, c := serve(t, so, 7), serve(t, so, 65535), client(version)
		first.want(t, c, false, nobody, 1)
		shown := first.want(t, c, true, 7, 1).Session()
		if next := first.want(t, c, true, 7, 1).Session(); version == tls.VersionTLS13 && bytes.Equal(shown[:16], next[:16]) {
			t.Errorf("%.16x is shown twice", shown)
		}
		second.want(t, c, true, 7, 1)
		second.want(t, c, true, 65535, 1)
		first.want(t, c, true, 65535, 1)
		first.want(t, c, true, 7, 1)
		first.complained(t)
		second.complained(t)
	})
}

func TestSessionsOutliveOneRotationAndEndQuietlyWithTheNext(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		s, c, slow := serve(t, tickets(t), 7), client(version), client(version)
		s.want(t, c, false, nobody, 1)
		s.want(t, slow, false, nobody, 1)
		s.rotate(t, 7, 2)
		s.want(t, c, true, 7, 1)
		s.want(t, c, true, 7, 2)
		s.rotate(t, 7, 3)
		s.want(t, c, true, 7, 2)
		s.want(t, slow, false, 7, 1)
		s.want(t, slow, true, 7, 3)
		s.complained(t)
	})
}

func TestSessionsResumeAtEachServerWhileKeysOfControllersRotate(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		so := tickets(t)
		a, b := serve(t, so, 7), serve(t, so, 65535)
		resumesByKeysOfControllers(t, version, a, b)
		a.complained(t)
		b.complained(t)
	})
}

// With TLS 1.2 clients get another ticket only where theirs is old: by another key, or of another server.
func TestATicketByAnOlderKeyIsReplaced(t *testing.T) {
	t.Parallel()
	s, c := serve(t, tickets(t), 7), client(tls.VersionTLS12)
	write(t, s.file, fleetFile(7, 1, 2))
	s.want(t, c, false, nobody, 1)
	first := s.want(t, c, true, 7, 1).Session()
	if again := s.want(t, c, true, 7, 1).Session(); !bytes.Equal(first, again) {
		t.Errorf("a ticket by the key in use is replaced")
	}
	write(t, s.file, fleetFile(7, 2, 1))
	s.want(t, c, true, 7, 1)
	if next := s.want(t, c, true, 7, 1).Session(); bytes.Equal(first, next) {
		t.Errorf("a ticket by an older key stays")
	}
	write(t, s.file, fleetFile(7, 2))
	s.want(t, c, true, 7, 1)
}

// A server whose file has no list, as of an older agent, and one whose file has it.
func TestOneKeyWithAndWithoutAListIsTheSame(t *testing.T) {
	t.Parallel()
	so := tickets(t)
	old, now, c := serve(t, so, 7), serve(t, so, 8), client(tls.VersionTLS13)
	file := fleetFile(7, 1, 2)
	file.TicketKeys = nil
	write(t, old.file, file)
	write(t, now.file, fleetFile(8, 1, 2))
	old.want(t, c, false, nobody, 1)
	now.want(t, c, true, 7, 1)
	old.want(t, c, true, 8, 1)
}

// opensslClient is `openssl s_client`: it resumes by session ids, too. It says whether its session was reused; the session is kept in a file.
func opensslClient(t *testing.T, s *server, kept string, arguments ...string) (reused bool, hello *hellotest.Hello) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sent := make(chan []byte, 1)
	go func() { // between the two, to see what is on the wire
		near, err := listener.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.Dial("tcp", s.address)
		if err != nil {
			return
		}
		defer far.Close()
		go func() {
			io.Copy(near, far)
			near.Close()
		}()
		var record bytes.Buffer
		io.Copy(io.MultiWriter(far, &record), near)
		sent <- record.Bytes()
	}()
	arguments = append([]string{"s_client", "-connect", listener.Addr().String(), "-ign_eof", "-sess_out", kept}, arguments...)
	if _, err := os.Stat(kept); err == nil {
		arguments = append(arguments, "-sess_in", kept)
	}
	command := exec.Command("openssl", arguments...)
	command.Stdin = strings.NewReader(askHTTP)
	out, err := command.CombinedOutput()
	lines := strings.Split(string(out), "\n") // the server's page has such lines as well
	done := func(how string) bool {
		return slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, how+", TLS") })
	}
	if !done("New") && !done("Reused") { // servers with 1.1.1 end connections without notice, which is an error
		t.Fatalf("%v: %v: %s", arguments, err, out)
	}
	hello, err = hellotest.Read(await.Value(t, sent, "the client's first bytes are there", func([]byte) bool { return true }))
	if err != nil {
		t.Fatal(err)
	}
	return done("Reused"), hello
}

// Servers keep such sessions themselves: another server does not know them.
func TestSessionIDsNameTheirServer(t *testing.T) {
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			so, kept := tickets(t), filepath.Join(t.TempDir(), "session.pem")
			first, second := serve(t, so, 7, "-no_ticket"), serve(t, so, 8, "-no_ticket")
			for i, step := range []struct {
				server *server
				reused bool
				id     uint16
			}{{first, false, nobody}, {first, true, 7}, {first, true, 7}, {second, false, 7}, {second, true, 8}} {
				reused, hello := opensslClient(t, step.server, kept, version)
				session := hello.SessionID
				if version == "-tls1_3" {
					session = hello.Identity
				}
				if got := named(session, 1); reused != step.reused || got != step.id || i > 0 && len(session) != 32 {
					t.Errorf("step %d: reused %v, shows %x of %d, not %v, %d", i, reused, session, got, step.reused, step.id)
				}
			}
			first.complained(t)
		})
	}
}

func TestTicketsOfOpenSSLsOwnClientNameTheirServer(t *testing.T) {
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s, kept := serve(t, tickets(t), 7), filepath.Join(t.TempDir(), "session.pem")
			opensslClient(t, s, kept, version)
			if reused, hello := opensslClient(t, s, kept, version); !reused || named(hello.Session(), 1) != 7 {
				t.Errorf("reused %v, %x", reused, hello.Session())
			}
		})
	}
}

// A server that starts before the agent is as it would be without the library, and names itself once the file is there.
func TestUntilTheFileIsReadTicketsAreTheProgramsOwn(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		s, c := serve(t, tickets(t), nobody), client(version)
		s.want(t, c, false, nobody, 1)
		first := s.want(t, c, true, nobody, 1).Session()
		if next := s.want(t, c, true, nobody, 1).Session(); !bytes.Equal(first[:16], next[:16]) {
			t.Errorf("OpenSSL's own key is named %.16x and %.16x", first, next)
		}
		s.complained(t, "web.json: is not there: session tickets name no server")
		s.rotate(t, 7, 1)
		s.want(t, c, false, nobody, 1)
		s.want(t, c, true, 7, 1)
		s.complained(t, "is not there", "is read now")
	})
	t.Run("session ids", func(t *testing.T) {
		t.Parallel()
		s, kept := serve(t, tickets(t), nobody, "-no_ticket"), filepath.Join(t.TempDir(), "session.pem")
		opensslClient(t, s, kept, "-tls1_2")
		if reused, hello := opensslClient(t, s, kept, "-tls1_2"); !reused || named(hello.SessionID, 1) != nobody {
			t.Errorf("reused %v, %x", reused, hello.SessionID)
		}
	})
}

// A server that has begun goes on, whatever becomes of its file.
func TestADamagedTicketFileChangesNothing(t *testing.T) {
	t.Parallel()
	right := ticketFile(7, 2)
	text, err := json.Marshal(right)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(from, to string) json.RawMessage {
		if !strings.Contains(string(text), from) {
			t.Fatalf("%s has no %s", text, from)
		}
		return json.RawMessage(strings.Replace(string(text), from, to, 1))
	}
	listed := func(list string) json.RawMessage {
		return changed(`"server_id":7`, `"server_id":7, "ticket_keys": `+list)
	}
	s, c := serve(t, tickets(t), 7), client(tls.VersionTLS13)
	s.want(t, c, false, nobody, 1)
	for name, content := range map[string]any{
		"nothing":                   nil,
		"a string":                  `"server_id`,
		"no number":                 changed(`"server_id":7`, `"server_id":"x"`),
		"server 0":                  changed(`"server_id":7`, `"server_id":0`),
		"server 65536":              changed(`"server_id":7`, `"server_id":65536`),
		"no id key":                 changed(`"id_key":`, `"other":`),
		"no ticket key":             changed(`"ticket_key":`, `"other":`),
		"a short key":               changed(`"id_key":"02`, `"id_key":"`),
		"a key of half bytes":       changed(`"id_key":"02`, `"id_key":"2`),
		"a key of other digits":     changed(`"id_key":"02`, `"id_key":"g2`),
		"a key that is too long":    changed(`"id_key":"02`, `"id_key":"`+strings.Repeat("02", 500)),
		"a long key before":         changed(`"id_key_before":"01`, `"id_key_before":"`+strings.Repeat("02", 500)),
		"half of the keys before":   changed(`"id_key_before":"`+strings.Repeat("01", 32), `"id_key_before":"`),
		"a wrong ticket key before": changed(`"ticket_key_before":"01`, `"ticket_key_before":"`),
		"no list":                   listed(`null`),
		"an empty list":             listed(`[]`),
		"a list of numbers":         listed(`[7]`),
		"a short key in a list":     listed(`["` + strings.Repeat("03", 32) + `", "03"]`),
		"no digits in a list":       listed(`["` + strings.Repeat("0g", 32) + `"]`),
		"a list within a list":      listed(`[["` + strings.Repeat("03", 32) + `"]]`),
	} {
		t.Log(name)
		write(t, s.file, content)
		s.want(t, c, true, 7, 1)
	}
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.want(t, c, true, 7, 1)
	if err := os.Mkdir(s.file, 0o700); err != nil {
		t.Fatal(err)
	}
	s.want(t, c, true, 7, 1)
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.rotate(t, 7, 2)
	s.want(t, c, true, 7, 1)
	s.want(t, c, true, 7, 2)
	lines := s.complaints()
	for i, line := range lines {
		end := ": session tickets are made as before"
		if i == len(lines)-1 {
			end = ": is read now"
		}
		if !strings.HasPrefix(line, "ballast-ticket: "+s.file+": ") || !strings.HasSuffix(line, end) {
			t.Error(line)
		}
	}
	if len(lines) < 5 || len(lines) > 23 {
		t.Errorf("%d complaints: %q", len(lines), lines)
	}
}

func TestWithoutAFileTheLibraryDoesNothing(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{"": "BALLAST_TICKETS: names no file", strings.Repeat("x", 5000): "names no file"} {
		dir := t.TempDir()
		cert, key := certificate(t, dir)
		s := start(t, preloaded(tickets(t), name), installed(t, "openssl"), "s_server", "-accept", "127.0.0.1:0", "-cert", cert, "-key", key)
		await.True(t, "s_server listens", func() bool { return strings.Contains(s.said.String(), "ACCEPT") })
		s.complained(t, says)
	}
}

// What somebody makes of a ticket leads to a full handshake and never ends a connection, or the server.
func TestDamagedTicketsAreNotResumed(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		draw := rand.New(rand.NewPCG(seed, 0))
		s, c := serve(t, tickets(t), 7), client(version)
		s.want(t, c, false, nobody, 1)
		kept, _ := c.ClientSessionCache.Get(c.ServerName)
		good, state, err := kept.ResumptionState()
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			ticket := bytes.Clone(good)
			switch draw.IntN(3) {
			case 0:
				ticket = ticket[:1+draw.IntN(len(ticket)-1)]
			case 1:
				ticket[draw.IntN(len(ticket))] ^= 1 << draw.IntN(8)
			default: // our name, and anything
				for i := 16; i < len(ticket); i++ {
					ticket[i] = byte(draw.Uint32())
				}
			}
			damaged, err := tls.NewResumptionState(ticket, state)
			if err != nil {
				t.Fatal(err)
			}
			c.ClientSessionCache.Put(c.ServerName, damaged)
			if resumed, _, err := s.visit(c); resumed || err != nil {
				t.Fatalf("%x: resumed %v, %v", ticket, resumed, err)
			}
		}
		s.want(t, c, true, 7, 1)
		s.complained(t)
	})
}

// As it is installed: it looks once a second.
func TestTheLibraryThatIsInstalledFollowsItsFile(t *testing.T) {
	t.Parallel()
	s, c := serve(t, library(t, "ticket"), 7), client(tls.VersionTLS13)
	await.True(t, "tickets name the server", func() bool {
		_, hello, err := s.visit(c)
		return err == nil && named(hello.Session(), 1) == 7
	})
	began := time.Now()
	s.rotate(t, 8, 2)
	await.True(t, "tickets are by the new key", func() bool {
		resumed, hello, err := s.visit(c)
		if err != nil || !resumed {
			t.Fatalf("resumed %v, %v", resumed, err)
		}
		return named(hello.Session(), 2) == 8
	})
	t.Logf("after %v", time.Since(began))
}

// Both libraries may be in one server.
func TestBothLibrariesGoTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	s := (&server{file: filepath.Join(dir, "web.json"), say: askHTTP}).rotate(t, 7, 1)
	for _, libraries := range []string{tickets(t) + ":" + library(t, "quic"), library(t, "quic") + ":" + tickets(t)} {
		s.address = "127.0.0.1:" + freePort(t)
		s.process = start(t, append(preloaded(libraries, s.file), "BALLAST_QUIC="+filepath.Join(dir, "none")), installed(t, "openssl"), "s_server", "-accept", s.address, "-cert", cert, "-key", key, "-www")
		s.up(t)
		c := client(tls.VersionTLS13)
		s.want(t, c, false, nobody, 1)
		s.want(t, c, true, 7, 1)
		s.complained(t, "ballast-quic")
	}
}
