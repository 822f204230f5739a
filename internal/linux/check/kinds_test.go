package check

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

const patience = 30 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// target is what listens at address, checked in that way.
func target(address string, h model.Health) Target {
	at := netip.MustParseAddrPort(address)
	if h.Timeout == 0 {
		h.Timeout = model.Duration(patience)
	}
	return Target{Service: "web", ID: 7, Name: "s7", VIP: netip.MustParseAddr("198.51.100.1"), Address: at.Addr(), Port: at.Port(), Health: h}
}

// expect makes one check; part of what it says is wrong, or "" for nothing. When the time is too short on a busy machine to come to what
// is looked for, it is given more.
func expect(t *testing.T, p *Prober, target Target, part string) {
	t.Helper()
	for limit := time.Duration(target.Health.Timeout); ; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		remarks, err := p.attempt(ctx, target)
		tooShort := ctx.Err() != nil
		cancel()
		if remarks.Direct == "" {
			t.Error("a straight check does not say so")
		}
		if part == "" && err == nil || part != "" && err != nil && strings.Contains(err.Error(), part) {
			return
		}
		if !tooShort || limit >= patience {
			t.Errorf("check %s says %v, want %q", target.Health.Check, err, part)
			return
		}
	}
}

// closed is an address where nobody listens.
func closed(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

// silent accepts and never answers.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// answering reads one request and writes the answer.
func answering(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 4096))
			io.WriteString(conn, answer)
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

const soon = model.Duration(50 * time.Millisecond)

func TestTCPIsHealthyWhenTheConnectionIsAccepted(t *testing.T) {
	p := New(Options{})
	expect(t, p, target(silent(t), model.Health{Check: model.CheckTCP}), "")
	expect(t, p, target(closed(t), model.Health{Check: model.CheckTCP}), "connect: connection refused")
	elsewhere := target(closed(t), model.Health{Check: model.CheckTCP})
	elsewhere.Health.Port = netip.MustParseAddrPort(silent(t)).Port()
	expect(t, p, elsewhere, "")
}

// What listens has no place left: the handshake gets no answer.
func TestAConnectionThatIsNotAnsweredTimesOut(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	must(t, err)
	defer syscall.Close(fd)
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	filler, err := net.Dial("tcp", address)
	must(t, err)
	defer filler.Close()
	expect(t, New(Options{}), target(address, model.Health{Check: model.CheckTCP, Timeout: soon}), "connect: timed out")
}

func TestHTTPGoesByTheStatus(t *testing.T) {
	var seen *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		if code >= 300 && code < 400 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(code)
	}))
	defer server.Close()
	p, address := New(Options{}), server.Listener.Addr().String()
	for code, fails := range map[int]bool{200: false, 204: false, 302: false, 308: false, 400: true, 404: true, 500: true, 503: true} {
		want := ""
		if fails {
			want = fmt.Sprintf("HTTP %d", code)
		}
		expect(t, p, target(address, model.Health{Check: model.CheckHTTP, Path: fmt.Sprintf("/health?code=%d", code)}), want)
		if seen.URL.Path != "/health" {
			t.Errorf("asked for %s: a redirect was followed, or the path is wrong", seen.URL.Path)
		}
	}
	at := target(address, model.Health{Check: model.CheckHTTP, Path: "/?code=200"})
	expect(t, p, at, "")
	if want := fmt.Sprintf("198.51.100.1:%d", at.Port); seen.Host != want || !seen.Close || seen.UserAgent() != "ballast-check" {
		t.Errorf("asked host %q, close %v, agent %q", seen.Host, seen.Close, seen.UserAgent())
	}
	at.Health.Host = "www.example.net"
	expect(t, p, at, "")
	if seen.Host != "www.example.net" {
		t.Errorf("asked host %q, want www.example.net", seen.Host)
	}
}

func TestWithoutAVIPATargetIsAskedAtItsOwnAddress(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Host }))
	defer server.Close()
	p := New(Options{Dial: func(context.Context, Target, uint16, []byte) (net.Conn, Remarks, error) {
		return nil, Remarks{Direct: "its own address is all there is"}, nil
	}})
	node := target(server.Listener.Addr().String(), model.Health{Check: model.CheckHTTP, Path: "/healthz"})
	node.VIP = netip.Addr{}
	remarks, err := p.attempt(t.Context(), node)
	if remarks.Direct != "" || err != nil {
		t.Fatalf("straight because %q, %v", remarks.Direct, err)
	}
	if host := <-asked; host != server.Listener.Addr().String() {
		t.Errorf("asked for %s", host)
	}
}

func TestHTTPSaysWhatIsWrongWithTheAnswer(t *testing.T) {
	p := New(Options{})
	for want, address := range map[string]string{
		"connection refused":                       closed(t),
		"the HTTP answer: timed out":               silent(t),
		"malformed HTTP":                           answering(t, "SSH-2.0-OpenSSH_9.2\r\n"),
		"the server closed the connection":         answering(t, ""),
		"HTTP answer: the server closed":           answering(t, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2*maxAnswer)),
		"HTTP 503":                                 answering(t, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 Later\r\n\r\n"),
		"HTTP 101":                                 answering(t, "HTTP/1.1 101 Switching Protocols\r\n\r\n"),
		"wait for the HTTP answer: the server clo": answering(t, "HTTP/1.1 100 Continue\r\n\r\n"),
	} {
		limit := model.Duration(patience)
		if strings.Contains(want, "timed out") {
			limit = soon
		}
		expect(t, p, target(address, model.Health{Check: model.CheckHTTP, Path: "/", Timeout: limit}), want)
	}
	// The body is not waited for.
	expect(t, p, target(answering(t, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx"), model.Health{Check: model.CheckHTTP, Path: "/"}), "")
}

func TestCertificatesAreVerifiedOnlyForAHost(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ill" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that end are what is tested here
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	address := server.Listener.Addr().String()
	for _, kind := range []model.Check{model.CheckTLS, model.CheckHTTPS} {
		check := func(p *Prober, host, want string) {
			t.Helper()
			h := model.Health{Check: kind, Host: host}
			if kind == model.CheckHTTPS {
				h.Path = "/"
			}
			expect(t, p, target(address, h), want)
		}
		check(New(Options{}), "", "")
		check(New(Options{}), "example.com", "TLS handshake: failed to verify certificate")
		check(New(Options{Roots: roots}), "example.com", "")
		check(New(Options{Roots: roots}), "example.com:8443", "")
		check(New(Options{Roots: roots}), "example.net", "valid for example.com")
	}
	expect(t, New(Options{}), target(address, model.Health{Check: model.CheckHTTPS, Path: "/ill"}), "HTTP 503")
	expect(t, New(Options{}), target(silent(t), model.Health{Check: model.CheckTLS, Timeout: soon}), "TLS handshake: timed out")
	expect(t, New(Options{}), target(answering(t, "not TLS at all"), model.Health{Check: model.CheckTLS}), "does not look like a TLS handshake")
}

func TestGRPCAsksTheHealthService(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server, status := grpc.NewServer(), grpchealth.NewServer()
	healthpb.RegisterHealthServer(server, status)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	p, address := New(Options{}), listener.Addr().String()
	ask := func(service, want string) {
		t.Helper()
		expect(t, p, target(address, model.Health{Check: model.CheckGRPC, Service: service, Host: "grpc.example.net"}), want)
	}
	ask("", "")
	ask("shop", `no service "shop"`)
	status.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	ask("shop", "")
	status.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
	ask("shop", "gRPC health: NOT_SERVING")

	bare, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	without := grpc.NewServer()
	go without.Serve(bare)
	t.Cleanup(without.Stop)
	expect(t, p, target(bare.Addr().String(), model.Health{Check: model.CheckGRPC}), "does not implement grpc.health.v1")
	expect(t, p, target(closed(t), model.Health{Check: model.CheckGRPC}), "connect: connection refused")
	expect(t, p, target(silent(t), model.Health{Check: model.CheckGRPC, Timeout: soon}), "timed out")
	expect(t, p, target(answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), model.Health{Check: model.CheckGRPC}), "gRPC health: Unavailable")
}

func shell(script string) model.Health {
	return model.Health{Check: model.CheckExec, Command: []string{"/bin/sh", "-c", script}}
}

func TestExecGoesByTheExitStatus(t *testing.T) {
	t.Setenv("SECRET", "x")
	p := New(Options{Exec: Exec{Any: true}})
	expect(t, p, target("192.0.2.7:8080", shell("exit 0")), "")
	expect(t, p, target("192.0.2.7:8080", shell("echo first; echo replication is 40s behind >&2; exit 3")), "exit status 3: replication is 40s behind")
	expect(t, p, target("192.0.2.7:8080", shell("kill -9 $$")), "signal: killed")
	expect(t, p, target("192.0.2.7:8080", model.Health{Check: model.CheckExec, Command: []string{"/nowhere/check"}}), "no such file")
	expect(t, p, target("192.0.2.7:8080", shell(
		`test "$BALLAST_SERVICE $BALLAST_SERVER $BALLAST_ADDRESS $BALLAST_PORT $BALLAST_VIP" = "web s7 192.0.2.7 8080 198.51.100.1" && test -z "$SECRET"`)), "")
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), mode))
	must(t, os.Chmod(path, mode)) // whatever the umask
}

// Promise: Load balancers run only `exec` checks that `--exec-checks` allows, as nobody, whoever sets them.
func TestExecRunsOnlyWhatTheHostAllowsAndNotAsRoot(t *testing.T) {
	top, err := os.MkdirTemp("", "checks")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755)) // nobody can get there
	dir := filepath.Join(top, "checks")
	must(t, os.Mkdir(dir, 0o755))
	const script = "#!/bin/sh\ntest $(id -u) -ne 0 -o \"$1\" = \"\"\n"
	write(t, filepath.Join(dir, "good"), script, 0o755)
	write(t, filepath.Join(dir, "open"), script, 0o777)
	write(t, filepath.Join(dir, "mine"), script, 0o700)
	write(t, filepath.Join(filepath.Dir(dir), "outside"), script, 0o755)
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	must(t, os.Symlink("/bin/sh", filepath.Join(dir, "link")))
	limited := New(Options{Exec: Exec{Dir: dir}})
	health := func(command ...string) model.Health { return model.Health{Check: model.CheckExec, Command: command} }
	root := ""
	if os.Geteuid() == 0 {
		root = "not as root"
	}
	for _, name := range []string{"good", filepath.Join(dir, "good"), dir + "/./good"} {
		expect(t, limited, target("192.0.2.7:80", health(name, root)), "")
	}
	for command, why := range map[string]string{
		"/bin/sh": "only programs in " + dir, "link": "no regular file", "folder": "no regular file", "open": "others than root can change", "mine": "runs as nobody",
		"../outside": "only programs in", dir + "/../outside": "only programs in", "..": "names no program", ".": "names no program", dir: "only programs in",
		dir + "/folder/x": "only programs in", "none": "no such file", "/": "only programs in", "": "names no program",
	} {
		_, err := limited.attempt(t.Context(), target("192.0.2.7:80", health(command)))
		if err == nil || !strings.Contains(err.Error(), why) || !ownFault(err) {
			t.Errorf("%q: %v: it should be refused with %q, and decide nothing", command, err, why)
		}
	}
	if _, err := New(Options{}).attempt(t.Context(), target("192.0.2.7:80", health("/bin/true"))); !ownFault(err) || !strings.Contains(err.Error(), "--exec-checks") {
		t.Errorf("without a directory: %v", err)
	}
	must(t, os.Chmod(dir, 0o775))
	if _, err := limited.attempt(t.Context(), target("192.0.2.7:80", health("good"))); !ownFault(err) {
		t.Errorf("from a directory that others can write: %v", err)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	must(t, os.Symlink(dir, moved))
	for _, bad := range []string{moved, "checks", filepath.Join(dir, "good"), "/nowhere"} {
		if CheckDir(bad) == nil {
			t.Errorf("%s was taken for a directory of programs", bad)
		}
	}
}

func TestChecksThatThisHostDoesNotMakeAreNamed(t *testing.T) {
	p := New(Options{NewVerdict: func(*Target) Verdict { return &health.Server{} }})
	one := target("192.0.2.7:80", shell("exit 0"))
	two := one
	two.ID++
	p.Set([]Target{one, two, {Service: "mail", ID: 1, Health: model.Health{Check: model.CheckTCP}}})
	if lines := p.Refused(); len(lines) != 1 || !strings.Contains(lines[0], "service web is not checked from here") || !strings.Contains(lines[0], "--exec-checks") {
		t.Errorf("told %q", lines)
	}
}

func TestAProgramThatHangsIsKilledWithItsChildren(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "pid")
	ctx, end := context.WithCancel(t.Context())
	said := make(chan error, 1)
	go func() {
		_, err := New(Options{Exec: Exec{Any: true}}).attempt(ctx, target("192.0.2.7:80", shell("sleep 1000 & echo $! > "+mark+"; wait")))
		said <- err
	}()
	var content []byte
	await.True(t, "the child runs", func() bool {
		content, _ = os.ReadFile(mark)
		return strings.HasSuffix(string(content), "\n")
	})
	end() // as its time does
	if err := <-said; err == nil || !strings.Contains(err.Error(), "/bin/sh: timed out") {
		t.Errorf("the check says %v", err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(content)))
	must(t, err)
	await.True(t, "the child is gone", func() bool { return dead(child) })
}

// dead processes are gone, or wait for init to notice.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestAProgramThatLeavesAChildBehindIsNotWaitedFor(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "pid")
	expect(t, New(Options{Exec: Exec{Any: true}}), target("192.0.2.7:80", shell("sleep infinity & echo $! > "+mark+"; exit 0")), "")
	content, err := os.ReadFile(mark)
	must(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(content)))
	must(t, err)
	if dead(child) {
		t.Error("the check has ended its program's child, or has waited for it")
	}
	must(t, syscall.Kill(child, syscall.SIGKILL))
}

// Its time may end while children hold its output: it has said before that all is well.
func TestAProgramThatEndedWellInTimeIsNotTimedOut(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "pid")
	ctx, end := context.WithCancel(t.Context())
	said := make(chan error, 1)
	go func() {
		_, err := New(Options{Exec: Exec{Any: true}}).attempt(ctx, target("192.0.2.7:80", shell("sleep 30 & echo $$ > "+mark)))
		said <- err
	}()
	await.True(t, "the program is over", func() bool {
		content, _ := os.ReadFile(mark)
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil && dead(pid)
	})
	end()
	if err := <-said; err != nil {
		t.Error(err)
	}
}

func TestTheOutputOfAProgramIsBounded(t *testing.T) {
	var output tail
	for range 100 {
		output.Write([]byte(strings.Repeat("y\n", 3000)))
	}
	output.Write([]byte("the end\n"))
	if len(output.bytes) != maxOutput || output.lastLine() != "the end" {
		t.Errorf("%d bytes are kept, the last line is %q", len(output.bytes), output.lastLine())
	}
	expect(t, New(Options{Exec: Exec{Any: true}}), target("192.0.2.7:80", shell("yes | head -c 1000000; exit 1")), "exit status 1: y")
}

func TestWhatServersSayIsMadeOneShortLine(t *testing.T) {
	if have := legible("bad\x1b[31m\nthing " + strings.Repeat("ä", 200)); len(have) > maxDetail+8 || strings.ContainsAny(have, "\x1b\n") {
		t.Errorf("%q", have)
	}
}

func TestNginxIsHealthyUntilItStops(t *testing.T) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed: make deps")
	}
	dir, address := t.TempDir(), closed(t)
	config := fmt.Sprintf(`daemon off; master_process off; user root; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
  access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server { listen %[2]s; location = /ok { return 200; } location = /moved { return 301 /elsewhere; } location = /ill { return 503; } }
}`, dir, address)
	must(t, os.WriteFile(dir+"/nginx.conf", []byte(config), 0o600))
	nginx := exec.Command(path, "-c", dir+"/nginx.conf", "-e", dir+"/error.log")
	must(t, nginx.Start())
	defer nginx.Process.Kill()
	p := New(Options{Exec: Exec{Any: true}})
	await.True(t, "nginx listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	for path, want := range map[string]string{"/ok": "", "/moved": "", "/ill": "HTTP 503", "/none": "HTTP 404"} {
		expect(t, p, target(address, model.Health{Check: model.CheckHTTP, Path: path}), want)
	}
	must(t, nginx.Process.Kill())
	nginx.Wait()
	expect(t, p, target(address, model.Health{Check: model.CheckHTTP, Path: "/ok"}), "connect: connection refused")
}
