package preload

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
)

// family starts a server of a kind in a folder, with a certificate, at a port.
type family struct {
	program string
	start   func(t testing.TB, dir, cert, key, port string) *server
	ownKeys bool // it is configured with keys that are named by ownName
}

var ownName = bytes.Repeat([]byte{0xaa}, 16)

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// asWorkers is a line of configuration for root, who names a user.
func asWorkers(t testing.TB, format string) string {
	if name, _ := workers(t); name != "" {
		return fmt.Sprintf(format, name)
	}
	return ""
}

func serveApache(t testing.TB, dir, cert, key, port string) *server {
	own, config := filepath.Join(dir, "ticket.key"), filepath.Join(dir, "apache.conf")
	put(t, own, strings.Repeat(string(ownName), 3))
	// sessions are of one virtual host, which is known by its name and port
	put(t, config, fmt.Sprintf(`
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so
%[1]s
ServerRoot %[2]s
DocumentRoot %[2]s
PidFile %[2]s/pid
ErrorLog /proc/self/fd/2
Mutex posixsem
StartServers 2
ServerName example.com:443
Listen 127.0.0.1:%[3]s
SSLSessionCache none
SSLEngine on
SSLCertificateFile %[4]s
SSLCertificateKeyFile %[5]s
SSLSessionTicketKeyFile %[6]s
`, asWorkers(t, "User %[1]s\nGroup %[1]s"), dir, port, cert, key, own))
	s := &server{say: askHTTP}
	s.process = start(t, preloaded(tickets(t), filepath.Join(dir, "web.json")), installed(t, "apache2"), "-f", config, "-DFOREGROUND")
	return s
}

func serveHAProxy(t testing.TB, dir, _, _, port string) *server {
	return startHAProxy(t, dir, port, "")
}

// startHAProxy starts it with a line of global configuration.
func startHAProxy(t testing.TB, dir, port, global string) *server {
	own, config, both := filepath.Join(dir, "ticket.keys"), filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "both.pem")
	line := base64.StdEncoding.EncodeToString(bytes.Repeat(ownName, 3)) + "\n"
	put(t, own, line+line+line)
	certPEM, keyPEM := pair()
	put(t, both, string(certPEM)+string(keyPEM))
	put(t, config, fmt.Sprintf(`
global
  %[1]s
%[2]s
defaults
  mode http
  timeout client 1m
  timeout server 1m
  timeout connect 1m
frontend web
  bind 127.0.0.1:%[3]s ssl crt %[4]s tls-ticket-keys %[5]s
  http-request return status 200 content-type text/plain string hello
`, global, asWorkers(t, "  user %[1]s\n  group %[1]s"), port, both, own))
	s := &server{say: askHTTP}
	s.process = start(t, preloaded(tickets(t), filepath.Join(dir, "web.json")), installed(t, "haproxy"), "-W", "-f", config)
	return s
}

// Dovecot starts a process for each connection, which reads the file as root.
func serveDovecot(t testing.TB, dir, cert, key, port string) *server {
	if os.Getuid() != 0 {
		t.Skip("dovecot needs root")
	}
	config := filepath.Join(dir, "dovecot.conf")
	put(t, config, fmt.Sprintf(`
base_dir = %[1]s/run
state_dir = %[1]s/state
log_path = /dev/stderr
protocols = imap
listen = 127.0.0.1
import_environment = LD_PRELOAD BALLAST_TICKETS
ssl = required
ssl_cert = <%[2]s
ssl_key = <%[3]s
passdb {
  driver = static
}
service imap-login {
  inet_listener imap {
    port = 0
  }
  inet_listener imaps {
    port = %[4]s
    ssl = yes
  }
}
`, dir, cert, key, port))
	s := &server{say: "a logout\r\n"}
	s.process = start(t, preloaded(tickets(t), filepath.Join(dir, "web.json")), installed(t, "dovecot"), "-F", "-c", config)
	return s
}

var families = map[string]family{
	"apache":  {"apache2", serveApache, true},
	"haproxy": {"haproxy", serveHAProxy, true},
	"dovecot": {"dovecot", serveDovecot, false},
}

// run starts one as a server in the first epoch; as nobody, its file is not there.
func (f family) run(t testing.TB, id uint16) *server {
	dir, port := openFolder(t), freePort(t)
	cert, key := certificate(t, dir)
	file := filepath.Join(dir, "web.json")
	if _, group := workers(t); id != nobody {
		(&server{file: file}).rotateShared(t, id, 1, group)
	}
	s := f.start(t, dir, cert, key, port)
	s.file, s.address = file, "127.0.0.1:"+port
	return s.up(t)
}

// eachFamily runs a test with those programs that are installed: for make test-long they are.
func eachFamily(t *testing.T, run func(t *testing.T, f family, version uint16)) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			installed(t, f.program)
			eachVersion(t, func(t *testing.T, version uint16) { run(t, f, version) })
		})
	}
}

// until visits a server until a ticket of that server and epoch is shown: processes look at the file one after the other.
func (s *server) until(t testing.TB, c *tls.Config, id uint16, epoch byte) {
	t.Helper()
	await.Nil(t, "tickets are by the new key", func() error {
		_, hello, err := s.visit(c)
		if err != nil {
			t.Fatal(err)
		}
		if named(hello.Session(), epoch) != id {
			return fmt.Errorf("shows %.16x: %s", hello.Session(), s.process.said.String())
		}
		return nil
	})
}

func TestTicketsOfOtherProgramsNameTheirServer(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family, version uint16) {
		first, second, c := f.run(t, 7), f.run(t, 8), client(version)
		first.want(t, c, false, nobody, 1)
		for range 5 {
			first.want(t, c, true, 7, 1)
		}
		second.want(t, c, true, 7, 1)
		second.want(t, c, true, 8, 1)
		_, group := workers(t)
		second.rotateShared(t, 8, 2, group)
		second.want(t, c, true, 8, 1)
		second.until(t, c, 8, 2)
	})
}

func TestUntilTheFileIsReadOtherProgramsUseTheirOwnKeys(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family, version uint16) {
		if !f.ownKeys {
			t.Skip("it has none that several processes share")
		}
		s, c := f.run(t, nobody), client(version)
		s.want(t, c, false, nobody, 1)
		for range 3 {
			if shown := s.want(t, c, true, nobody, 1).Session(); !bytes.HasPrefix(shown, ownName) {
				t.Errorf("shows %.16x", shown)
			}
		}
		_, group := workers(t)
		s.rotateShared(t, 7, 1, group)
		s.until(t, c, 7, 1)
	})
}

// HAProxy goes into a chroot before it takes connections. There is no file, and it goes on by what it has read; when it is reloaded, it reads it again.
func TestAProgramInAChrootGoesOnAsBeforeUntilItIsReloaded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change its root")
	}
	inChroot := family{"haproxy", func(t testing.TB, dir, cert, key, port string) *server {
		return startHAProxy(t, dir, port, "chroot "+t.TempDir())
	}, true}
	s, c := inChroot.run(t, 7), client(tls.VersionTLS13)
	s.want(t, c, false, nobody, 1)
	s.want(t, c, true, 7, 1)
	_, group := workers(t)
	s.rotateShared(t, 8, 2, group)
	for range 3 {
		s.want(t, c, true, 7, 1)
	}
	await.True(t, "HAProxy reloads", func() bool { // its master loses signals when it has just begun
		if err := s.Process.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(s.process.said.String(), "Reloading")
	})
	s.until(t, c, 8, 2)
	var gone int
	for _, line := range s.complaints() {
		if strings.Contains(line, "is not there: session tickets are made as before") {
			gone++
		}
	}
	if gone == 0 || gone > 2 {
		t.Errorf("%q", s.complaints())
	}
}
