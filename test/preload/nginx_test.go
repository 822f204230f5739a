package preload

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/ballast-lb/ballast/internal/await"
)

// workers is the user that servers become, and their group; empty if tests do not run as root.
func workers(t testing.TB) (name string, group int) {
	t.Helper()
	if os.Getuid() != 0 {
		return "", os.Getgid()
	}
	known, err := user.Lookup("www-data")
	if err != nil {
		t.Skip(err)
	}
	group, err = strconv.Atoi(known.Gid)
	if err != nil {
		t.Fatal(err)
	}
	return known.Username, group
}

// share lets a group read a file, as the agent does.
func share(t testing.TB, path string, group int) {
	t.Helper()
	if err := errors.Join(os.Chown(path, -1, group), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
}

// rotateShared is rotate of a file that the server's workers may read.
func (s *server) rotateShared(t testing.TB, id uint16, epoch byte, group int) {
	t.Helper()
	next := &server{file: s.file + ".shared"}
	next.rotate(t, id, epoch)
	share(t, next.file, group)
	if err := os.Rename(next.file, s.file); err != nil {
		t.Fatal(err)
	}
}

// nginx is one, and its configuration.
type nginx struct {
	*server
	config string
}

// serveNginx starts it with so many workers; more is what its configuration says besides.
func serveNginx(t testing.TB, dir string, number int, more string) *nginx {
	t.Helper()
	program := installed(t, "nginx")
	port := freePort(t)
	cert, key := certificate(t, dir)
	name, _ := workers(t)
	if name != "" {
		name = "user " + name + ";"
	}
	var temporary strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	n := &nginx{&server{file: filepath.Join(dir, "web.json"), address: "127.0.0.1:" + port, say: askHTTP}, filepath.Join(dir, "nginx.conf")}
	if err := os.WriteFile(n.config, fmt.Appendf(nil, `%s
daemon off;
worker_processes %d;
pid %s/pid;
error_log stderr;
events {}
http {
access_log off;
%s
server {
listen 127.0.0.1:%s ssl;
ssl_certificate %s;
ssl_certificate_key %s;
ssl_protocols TLSv1.2 TLSv1.3;
%s
location / { return 200 "$ssl_session_reused\n"; }
}
}
`, name, number, dir, temporary.String(), port, cert, key, more), 0o600); err != nil {
		t.Fatal(err)
	}
	n.process = start(t, preloaded(tickets(t), n.file), program, "-c", n.config)
	return n
}

func (n *nginx) reload(t testing.TB) {
	t.Helper()
	if said, err := exec.Command(n.Path, "-c", n.config, "-s", "reload").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

func TestNginxsTicketsNameItsServer(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		dir, c := openFolder(t), client(version)
		own := filepath.Join(dir, "ticket.key")
		if err := os.WriteFile(own, bytes.Repeat([]byte{0xaa}, 80), 0o600); err != nil {
			t.Fatal(err)
		}
		_, group := workers(t)
		s := &server{file: filepath.Join(dir, "web.json")}
		s.rotateShared(t, 7, 1, group)
		n := serveNginx(t, dir, 1, "ssl_session_ticket_key "+own+";")
		n.up(t)
		n.want(t, c, false, nobody, 1)
		for range 4 {
			n.want(t, c, true, 7, 1)
		}
		n.complained(t, "the application's own ticket keys or session ids are not used")

		// the worker follows the file
		n.rotateShared(t, 8, 2, group)
		n.want(t, c, true, 7, 1)
		n.want(t, c, true, 8, 2)
		n.rotateShared(t, 8, 3, group)
		n.want(t, c, true, 8, 2)
		n.want(t, c, true, 8, 3)
		if os.Getuid() != 0 {
			return
		}

		// a file that only root may read: the worker goes on as before, until the master has read it
		n.rotate(t, 9, 4)
		for range 4 {
			n.want(t, c, true, 8, 3)
		}
		n.reload(t)
		await.Nil(t, "tickets are by what the master has read", func() error { // both workers accept for a while
			_, hello, err := n.visit(c)
			if err == nil && named(hello.Session(), 4) != 9 {
				err = fmt.Errorf("shows %.16x", hello.Session())
			}
			return err
		})
		n.complained(t, "are not used", "may not be read by this user: session tickets are made as before")
	})
}

func TestNginxReloadsWhileClientsResume(t *testing.T) {
	t.Parallel()
	dir := openFolder(t)
	_, group := workers(t)
	s := &server{file: filepath.Join(dir, "web.json")}
	s.rotateShared(t, 7, 1, group)
	n := serveNginx(t, dir, 2, "")
	n.up(t)
	const reloads = 3
	var done atomic.Bool
	var visits atomic.Int64
	var clients errgroup.Group
	for i := range 3 {
		clients.Go(func() error {
			c := client([]uint16{tls.VersionTLS13, tls.VersionTLS12}[i%2])
			for j := 0; !done.Load(); j++ {
				if resumed, _, err := n.visit(c); err != nil || resumed != (j > 0) {
					return fmt.Errorf("connection %d resumed %v: %w", j, resumed, err)
				}
				visits.Add(1)
			}
			return nil
		})
	}
	for range reloads {
		before := visits.Load()
		await.True(t, "clients resume", func() bool { return visits.Load() > before+20 })
		n.reload(t)
	}
	n.rotateShared(t, 7, 2, group)
	before := visits.Load()
	await.True(t, "clients resume", func() bool { return visits.Load() > before+50 })
	done.Store(true)
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	n.complained(t)
}

// Until the file is there, the key that nginx is configured with counts.
func TestUntilTheFileIsReadNginxUsesItsOwnKey(t *testing.T) {
	eachVersion(t, func(t *testing.T, version uint16) {
		dir, c := openFolder(t), client(version)
		own := filepath.Join(dir, "ticket.key")
		key := append([]byte("0123456789abcdef"), bytes.Repeat([]byte{0xaa}, 64)...)
		if err := os.WriteFile(own, key, 0o600); err != nil {
			t.Fatal(err)
		}
		n := serveNginx(t, dir, 1, "ssl_session_ticket_key "+own+";")
		n.up(t)
		n.want(t, c, false, nobody, 1)
		for range 3 {
			if shown := n.want(t, c, true, nobody, 1).Session(); !bytes.HasPrefix(shown, key[:16]) {
				t.Errorf("shows %.16x", shown)
			}
		}
		_, group := workers(t)
		n.rotateShared(t, 7, 1, group)
		n.want(t, c, false, nobody, 1)
		n.want(t, c, true, 7, 1)
		n.complained(t, "is not there", "is read now", "are not used")
	})
}

// Sessions by nginx's cache, which its workers share.
func TestNginxsSessionIDsNameItsServer(t *testing.T) {
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := openFolder(t)
			_, group := workers(t)
			s := &server{file: filepath.Join(dir, "web.json")}
			s.rotateShared(t, 7, 1, group)
			n := serveNginx(t, dir, 2, "ssl_session_tickets off;\nssl_session_cache shared:sessions:1m;")
			n.up(t)
			kept := filepath.Join(dir, "session.pem")
			for i := range 4 {
				reused, hello := opensslClient(t, n.server, kept, version)
				session := hello.SessionID
				if version == "-tls1_3" {
					session = hello.Identity
				}
				if i > 0 && (!reused || len(session) != 32 || named(session, 1) != 7) {
					t.Errorf("connection %d: reused %v, shows %x of %d", i, reused, session, named(session, 1))
				}
			}
		})
	}
}
