package preload

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
	"github.com/ballast-lb/ballast/pkg/sessionticket"
)

// An agent works in the network namespace that its process was started in.
const agentDir = "BALLAST_TEST_AGENT"

func init() {
	dir := os.Getenv(agentDir)
	if dir == "" {
		return
	}
	err := agent.Run(context.Background(), agentOptions(dir, slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	fmt.Fprintln(os.Stderr, "agent:", err)
	os.Exit(1)
}

// agentOptions are of the agent whose files are in a folder, which is its name, below that of the certificates.
func agentOptions(dir string, log *slog.Logger) agent.Options {
	return agent.Options{Name: filepath.Base(dir), Controllers: []string{"10.9.0.1:6443"}, TLSDir: filepath.Dir(dir), Instance: "test", RunDir: filepath.Join(dir, "run"),
		StateDir: filepath.Join(dir, "state"), Interfaces: []string{"eth0"}, XDPMode: attach.XDPAuto, Log: log}
}

// fleetServer is a host with an agent.
type fleetServer struct {
	dir   string
	space *netspace.Space
	log   *said
	agent *exec.Cmd
}

func require(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSpace(t testing.TB, name string) *netspace.Space {
	t.Helper()
	space, err := netspace.Create(fmt.Sprintf("ballast-pre-%d-%s", os.Getpid(), name))
	require(t, err)
	t.Cleanup(func() {
		space.Close()
		require(t, netspace.Remove(space.Name))
	})
	return space
}

// newFleetServer makes the host of a server, number 2 or 3, that reaches the controller's.
func newFleetServer(t testing.TB, tls string, control *netspace.Space, number int) *fleetServer {
	t.Helper()
	s := &fleetServer{dir: filepath.Join(tls, fmt.Sprint("s", number)), space: newSpace(t, fmt.Sprint("s", number)), log: &said{}}
	require(t, os.MkdirAll(filepath.Join(s.dir, "run"), 0o755))
	require(t, pin.EnsureBPFFS(filepath.Join(s.dir, "run", "bpf"))) // here, so that the test can take it away
	near, far := netip.MustParsePrefix(fmt.Sprintf("10.9.%d.2/24", number)), netip.MustParsePrefix(fmt.Sprintf("10.9.%d.1/24", number))
	require(t, errors.Join(netspace.Connect(netspace.End{Space: s.space, Interface: "eth0", Addresses: []netip.Prefix{near}},
		netspace.End{Space: control, Interface: fmt.Sprint("eth", number), Addresses: []netip.Prefix{far}}),
		s.space.AddAddress("lo", netip.MustParsePrefix("198.51.100.10/32")),
		s.reach(far.Addr()),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: filepath.Base(s.dir)})))
	t.Cleanup(func() {
		s.stop()
		require(t, s.space.Do(func() error {
			return agent.Detach(agentOptions(s.dir, slog.New(slog.DiscardHandler)), func(string) error { return nil })
		}))
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	return s
}

// reach makes the way to the controller.
func (s *fleetServer) reach(by netip.Addr) error {
	return s.space.Route(netip.MustParsePrefix("10.9.0.1/32"), 0, netspace.NextHop{Gateway: by, Interface: "eth0"})
}

func (s *fleetServer) start(t testing.TB) {
	t.Helper()
	s.agent = exec.Command("/proc/self/exe")
	s.agent.Env = append(os.Environ(), agentDir+"="+s.dir)
	s.agent.Stderr = s.log
	require(t, s.space.Start(s.agent))
}

func (s *fleetServer) stop() {
	if s.agent != nil {
		s.agent.Process.Kill()
		s.agent.Wait()
		s.agent = nil
	}
}

// hold stops an agent's time, or lets it go on.
func (s *fleetServer) hold(t testing.TB, held bool) {
	t.Helper()
	signal := unix.SIGCONT
	if held {
		signal = unix.SIGSTOP
	}
	require(t, s.agent.Process.Signal(signal))
}

func (s *fleetServer) file() string {
	return filepath.Join(s.dir, "run", "tickets", "test", "web.json")
}

// keys waits until an agent has so many keys, and makes tickets by that of an epoch; it returns what it says.
func (s *fleetServer) keys(t testing.TB, epoch uint32, count int) (told sessionticket.File) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%s uses epoch %d of %d keys", filepath.Base(s.dir), epoch, count), func() error {
		var status api.AgentStatus
		if err := s.client().Get(t.Context(), api.PathStatus, &status); err != nil {
			return err
		}
		if len(status.TicketKeys) != 1 || status.TicketKeys[0].Source != "controllers" || status.TicketKeys[0].Epoch != epoch || len(status.TicketKeys[0].Read) != count {
			return fmt.Errorf("keys %+v, problems %q", status.TicketKeys, status.Problems)
		}
		return nil
	})
	text, err := os.ReadFile(s.file())
	require(t, errors.Join(err, json.Unmarshal(text, &told)))
	if len(told.TicketKeys) != count || !bytes.Equal(told.TicketKey, told.TicketKeys[0]) {
		t.Fatalf("%d keys in the file", len(told.TicketKeys))
	}
	return told
}

// serveGo answers TLS connections by a file, in Go.
func serveGo(t testing.TB, file string) *server {
	t.Helper()
	certPEM, keyPEM := pair()
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	require(t, err)
	tickets, err := sessionticket.Open(file)
	require(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	tickets.Configure(config)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Read(make([]byte, 100)); err == nil {
					io.WriteString(conn, "hello")
				}
			}()
		}
	}()
	return &server{process: &process{}, file: file, address: listener.Addr().String(), say: askHTTP}
}

// operate starts a controller in a namespace, and returns who changes its fleet.
func operate(t testing.TB, tls string, space *netspace.Space, log *said) ballastv1connect.FleetClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	o := controller.Options{Name: "c1", Listen: "10.9.0.1:6443", TLSDir: tls, RunDir: filepath.Join(tls, "run"), Store: storetest.New(), Timing: fleet.DefaultTiming, Version: "test",
		Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Ready: func(address string) { ready <- address }, TicketSettle: 1100 * time.Millisecond} // applications follow their files each second
	go func() { ended <- space.Do(func() error { return controller.Run(ctx, o) }) }()
	t.Cleanup(func() { cancel(); require(t, <-ended) })
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	client := api.NewClient(api.SocketPath(o.RunDir, "c1")).Fleet()
	await.Nil(t, "the fleet is applied", func() error {
		_, err := client.Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{{Name: "web", Vip: "198.51.100.10", Ports: []uint32{443}, Session: "tls",
			Servers: []*ballastv1.Server{{Name: "s2", Address: "10.9.2.2", Id: 2}, {Name: "s3", Address: "10.9.3.2", Id: 3}}}}})
		return err
	})
	return client
}

// anyKey is the id of whom a session's name is of, by the keys of a file.
func anyKey(file *sessionticket.File, session []byte) uint16 {
	if len(session) < sessionid.Length {
		return nobody
	}
	id, _ := sessionid.Open(sessionid.Load([32]byte(file.IDKey)), [sessionid.Length]byte(session))
	return id
}

// Two servers of a fleet, with real agents and a real controller: whoever hears of a key first, sessions resume at both, and are never undecryptable.
//
// Promise: While controllers rotate ticket keys and servers receive them one after the other, sessions resume at
// each server.
// Also held by TestEveryServerReadsEveryTicketThatHasNotExpired.
func TestSessionsResumeAtAnotherServerOfTheFleetWhileItsKeysRotate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel() // it waits most of the time
	dir, log, control := openFolder(t), &said{}, newSpace(t, "control")
	require(t, errors.Join(pki.Init(dir, pki.DefaultAuthorityLife, false), pki.Issue(dir, pki.Request{Role: pki.Controller, Name: "c1"}),
		control.AddAddress("lo", netip.MustParsePrefix("10.9.0.1/32"))))
	operator := operate(t, dir, control, log)
	a, b := newFleetServer(t, dir, control, 2), newFleetServer(t, dir, control, 3)
	a.start(t)
	b.start(t)
	first, second := a.keys(t, 1, 2), b.keys(t, 1, 2)
	if !bytes.Equal(first.TicketKey, second.TicketKey) || first.ServerID != 2 || second.ServerID != 3 {
		t.Fatalf("two servers %d and %d of one service, with two keys", first.ServerID, second.ServerID)
	}
	for path, mode := range map[string]os.FileMode{a.file(): 0o600, statefile.Agent(filepath.Join(a.dir, "state"), "test"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	servers := map[*fleetServer][]*server{}
	so := tickets(t)
	for _, host := range []*fleetServer{a, b} {
		preloaded := serveBy(t, so, host.file())
		servers[host] = []*server{preloaded, serveGo(t, host.file())}
	}
	use := func(epoch uint32) error {
		_, err := operator.UseTicketKey(t.Context(), &ballastv1.KeyRequest{Epoch: epoch})
		return err
	}
	both := func(what string) {
		t.Helper()
		for kind := range servers[a] {
			for _, version := range versions {
				for _, way := range [][2]*fleetServer{{a, b}, {b, a}} {
					c := client(version)
					for i := range 4 {
						resumed, hello, err := servers[way[i%2]][kind].visit(c)
						if err != nil || resumed != (i > 0) {
							t.Fatalf("%s: connection %d of kind %d, %x: resumed %v: %v", what, i, kind, version, resumed, err)
						}
						if id := anyKey(&first, hello.Session()); i > 0 && id != map[*fleetServer]uint16{a: 2, b: 3}[way[(i+1)%2]] {
							t.Fatalf("%s: connection %d shows a session of %d", what, i, id)
						}
					}
				}
			}
		}
	}
	both("at first")
	for i, late := range []*fleetServer{a, b} {
		early, epoch := map[*fleetServer]*fleetServer{a: b, b: a}[late], uint32(i+2)
		await.Nil(t, "the next key may be used", func() error {
			list, err := operator.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
			if err == nil && len(list.Behind) > 0 {
				err = errors.New(list.Behind[0])
			}
			return err
		})
		late.hold(t, true)
		require(t, use(epoch))
		early.keys(t, epoch, int(epoch)+1)
		both(fmt.Sprintf("server %s does not use epoch %d yet", filepath.Base(late.dir), epoch))
		if err := use(epoch + 1); err == nil || !strings.Contains(err.Error(), "does not have the key of epoch") && !strings.Contains(err.Error(), "no agent of it is connected") {
			t.Errorf("a key that a server lacks is used: %v", err)
		}
		late.hold(t, false)
		late.keys(t, epoch, int(epoch)+1)
		both(fmt.Sprintf("both use epoch %d", epoch))
	}

	// An agent that begins again without the controller goes on with its keys.
	kept := a.keys(t, 3, 4)
	a.stop()
	require(t, os.RemoveAll(filepath.Join(a.dir, "run", "tickets")))
	require(t, a.space.SetLink("eth0", false))
	a.start(t)
	if again := a.keys(t, 3, 4); !bytes.Equal(again.TicketKey, kept.TicketKey) {
		t.Error("another key after a restart")
	}
	both("after a restart")
	require(t, errors.Join(a.space.SetLink("eth0", true), a.reach(netip.MustParseAddr("10.9.2.1"))))

	// A server that is removed is told no newer keys.
	_, err := operator.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "s2", Force: true})
	require(t, err)
	_, err = operator.RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{Force: true})
	require(t, err)
	fresh := b.keys(t, 5, 2)
	await.True(t, "the removed server forgets the fleet's keys", func() bool {
		text, err := os.ReadFile(a.file())
		return err == nil && !bytes.Contains(text, []byte("ticket_keys")) && !bytes.Contains(text, []byte(hex.EncodeToString(fresh.TicketKey)))
	})
	gone := client(tls.VersionTLS13)
	_, _, err = servers[a][0].visit(gone)
	require(t, err)
	if resumed, _, err := servers[b][0].visit(gone); err != nil || resumed {
		t.Errorf("a session of the removed server resumes: %v, %v", resumed, err)
	}

	said := map[string]string{"log of the controller": log.String(), "log of a": a.log.String(), "log of b": b.log.String()}
	for _, path := range []string{api.PathStatus, api.PathRunning, api.PathCounters, api.PathMetrics} {
		said[path+" of b"] = b.tells(t, path)
	}
	for what, text := range said {
		for _, key := range slices.Concat(first.TicketKeys, kept.TicketKeys, fresh.TicketKeys) {
			for _, form := range []string{hex.EncodeToString(key[:6]), strings.Trim(strings.ReplaceAll(fmt.Sprint([]byte(key[:6])), " ", ","), "[]")} {
				if text == "" || strings.Contains(text, form) {
					t.Errorf("the %s has a key: %s", what, text)
				}
			}
		}
	}
}

// tells is what an agent says to root.
func (s *fleetServer) tells(t testing.TB, path string) string {
	t.Helper()
	stream, err := s.client().Stream(t.Context(), path)
	require(t, err)
	defer stream.Close()
	text, err := io.ReadAll(stream)
	require(t, err)
	return string(text)
}

func (s *fleetServer) client() *api.Client {
	return api.NewClient(api.SocketPath(filepath.Join(s.dir, "run"), "test"))
}
