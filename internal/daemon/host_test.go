package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// hostDeadline is for what comes at once on a machine that has nothing else to do. hostLife is more than any daemon of a test needs.
const (
	hostDeadline = 30 * time.Second
	hostLife     = 3 * time.Minute
)

// daemonProcess tells a test's child process which daemon to be, and daemonDir where its files are. A daemon needs a process of its
// own: it works in the network namespace that it was started in.
const (
	daemonProcess = "BALLAST_TEST_DAEMON"
	daemonDir     = "BALLAST_TEST_DIR"
)

// host runs a daemon in a namespace that has a link to a peer: 10.9.0.1 here, 10.9.0.2 to .4 there. The peer's end has the pass program.
type host struct {
	t           *testing.T
	role        string
	space, peer *netspace.Space
	dir         string
	output      output
	process     *exec.Cmd
	life        *time.Timer
	client      *api.Client
}

// spaces counts the namespaces of this process: tests run beside each other.
var spaces atomic.Int64

// output is what a daemon says, which may be read while it speaks.
type output struct {
	mutex sync.Mutex
	said  bytes.Buffer
}

// noRaces skips a test that is about the kernel's edge, with the same goroutines as in others, where races are looked for: each start loads all programs.
func noRaces(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the daemons' goroutines are those of other tests")
	}
}

func (o *output) Write(text []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.said.Write(text)
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.said.String()
}

func newHost(t *testing.T, role string, here, there []string) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := newDaemon(t, role, newSpace(t, role))
	h.peer = newSpace(t, role+"-peer")
	require(t, netspace.Connect(end(h.space, here), end(h.peer, there)))
	h.onPeer(attachPass)
	return h
}

// newDaemon is a host without a peer.
func newDaemon(t *testing.T, role string, space *netspace.Space) *host {
	t.Helper()
	h := &host{t: t, role: role, dir: t.TempDir(), space: space}
	h.client = api.NewClient(api.SocketPath(h.runDir(), "test"))
	// Mounted here, so that the test can take it away.
	require(t, pin.EnsureBPFFS(filepath.Join(h.runDir(), "bpf")))
	t.Cleanup(func() {
		h.end()
		err := h.remove("test")
		if errors.Is(err, instance.ErrNoInstance) { // it never came to attach
			require(t, pin.RemoveBPFFS(filepath.Join(h.runDir(), "bpf")))
		} else {
			require(t, err)
		}
		if t.Failed() {
			t.Log(h.output.String())
		}
	})
	return h
}

// remove does what --detach of the host's role does.
func (h *host) remove(name string) error {
	return h.space.Do(func() error {
		if strings.HasSuffix(h.role, "agent") {
			return agent.Detach(agent.Options{RunDir: h.runDir(), Instance: name, Log: slog.New(slog.NewTextHandler(&h.output, nil))}, func(harm string) error {
				_, err := fmt.Fprintln(&h.output, harm)
				return err
			})
		}
		return instance.Detach(h.runDir(), name, pki.LB, func(string) error { return nil })
	})
}

func newSpace(t *testing.T, role string) *netspace.Space {
	t.Helper()
	made, err := netspace.Create(fmt.Sprintf("ballast-dmn-%d-%d-%s", os.Getpid(), spaces.Add(1), role))
	require(t, err)
	t.Cleanup(func() {
		made.Close()
		require(t, netspace.Remove(made.Name))
	})
	return made
}

func end(space *netspace.Space, addresses []string) netspace.End {
	e := netspace.End{Space: space, Interface: "eth0"}
	for _, address := range addresses {
		e.Addresses = append(e.Addresses, netip.MustParsePrefix(address))
	}
	return e
}

func (h *host) runDir() string { return filepath.Join(h.dir, "run") }

// command is another daemon of the same files.
func (h *host) command() *exec.Cmd {
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), daemonProcess+"="+h.role, daemonDir+"="+h.dir)
	return command
}

func (h *host) start() {
	h.t.Helper()
	h.process = h.command()
	h.process.Stderr = &h.output
	h.life = h.launch(h.process)
}

// launch starts a daemon. One that hangs, and whoever waits for it, would hang the test: it says in time where, and ends.
func (h *host) launch(daemon *exec.Cmd) (life *time.Timer) {
	h.t.Helper()
	require(h.t, h.space.Start(daemon))
	return time.AfterFunc(hostLife, func() { daemon.Process.Signal(unix.SIGQUIT) })
}

// wait waits until a daemon has ended by itself.
func (h *host) wait() error {
	defer h.life.Stop()
	err := h.process.Wait()
	h.process = nil
	return err
}

// end kills the daemon, which says before that what it is doing when the test has failed.
func (h *host) end() {
	if h.process != nil && h.t.Failed() {
		h.process.Process.Signal(unix.SIGQUIT)
		daemon := h.process.Process
		defer time.AfterFunc(hostDeadline, func() { daemon.Kill() }).Stop()
		h.wait()
	}
	h.kill()
}

// kill leaves the daemon no time for anything.
func (h *host) kill() {
	if h.process != nil {
		h.process.Process.Kill()
		h.wait()
	}
}

// write replaces the file as an editor does, and returns the sum that a daemon reports for it.
func (h *host) write(content string) (sum string) {
	h.t.Helper()
	path := filepath.Join(h.dir, "ballast.yaml")
	require(h.t, os.WriteFile(path+".new", []byte(content), 0o600))
	require(h.t, os.Rename(path+".new", path))
	return config.Sum([]byte(content))
}

func (h *host) metrics() string {
	h.t.Helper()
	stream, err := h.client.Stream(h.t.Context(), api.PathMetrics)
	require(h.t, err)
	defer stream.Close()
	text, err := io.ReadAll(stream)
	require(h.t, err)
	metricstest.Check(h.t, string(text))
	return string(text)
}

// expectMetrics checks what the daemon tells Prometheus, a line each.
func (h *host) expectMetrics(when string, lines ...string) {
	h.t.Helper()
	text := "\n" + h.metrics()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line) {
			h.t.Errorf("%s: no metric %s in%s", when, line, text)
		}
	}
}

// awaitStatus asks for the daemon's status, an S, until it is as wanted.
func awaitStatus[S any](h *host, what string, done func(S) bool) (status S) {
	h.t.Helper()
	await.Nil(h.t, what, func() error {
		status = *new(S) // what is left out of an answer must not be left over from the one before
		err := h.client.Get(h.t.Context(), api.PathStatus, &status)
		if err == nil && !done(status) {
			err = fmt.Errorf("status %+v", status)
		}
		return err
	})
	return status
}

func require(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
