package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

func (h *host) pinDir() string { return filepath.Join(h.runDir(), "bpf", "test") }

// detach does what `bpftool link detach pinned` does.
func (h *host) detach(hook string) {
	h.t.Helper()
	var pins []string
	h.eventually("one pinned link of hook "+hook, func() bool { // a link is attached before it is pinned
		var err error
		pins, err = filepath.Glob(filepath.Join(h.pinDir(), "link-"+hook+"-*"))
		require(h.t, err)
		return len(pins) == 1
	})
	path := append([]byte(pins[0]), 0)
	pinned := struct {
		path      *byte
		fd, flags uint32
	}{path: &path[0]}
	fd, err := bpf(unix.BPF_OBJ_GET, unsafe.Pointer(&pinned), unsafe.Sizeof(pinned))
	require(h.t, err)
	defer unix.Close(fd)
	link := uint32(fd)
	_, err = bpf(unix.BPF_LINK_DETACH, unsafe.Pointer(&link), unsafe.Sizeof(link))
	require(h.t, err)
}

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (fd int, err error) {
	result, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	if errno != 0 {
		return -1, fmt.Errorf("bpf command %d: %w", command, errno)
	}
	return int(result), nil
}

// whileStopped does something that the daemon must not come in between of.
func (h *host) whileStopped(do func()) {
	h.t.Helper()
	pid := h.process.Process.Pid
	require(h.t, unix.Kill(pid, unix.SIGSTOP))
	defer unix.Kill(pid, unix.SIGCONT)
	require(h.t, unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil)) // every thread of it
	do()
}

// program is the XDP program that runs on eth0, 0: none.
func (h *host) program() (id uint32) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err == nil && device.Attrs().Xdp != nil {
			id = device.Attrs().Xdp.ProgId
		}
		return err
	}))
	return id
}

func (h *host) eventually(what string, done func() bool) {
	h.t.Helper()
	await.True(h.t, what, done)
}

// Promise: A detached program, or one whose interface was recreated, is attached again within about a second; if
// another program has the hook, the daemon is not ready and names it.
// Also held by TestAProgramInThePlaceOfOursIsNamedAndNotFought and TestAnAgentsProgramsAreAttachedAgain.
func TestAProgramThatSomebodyDetachesIsAttachedAgain(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	ours := h.program()
	for range 2 {
		h.detach("xdp")
		h.eventually("the program to be back", func() bool { return h.program() == ours })
	}
	h.await("the load balancer to be ready", func(s api.LBStatus) bool { return s.Ready && s.Interfaces["eth0"] == "native" })
	h.kill()
	if h.program() != ours {
		t.Error("the new link ended with the process: it is not pinned")
	}
}

func TestAProgramInThePlaceOfOursIsNamedAndNotFought(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	h.awaitHealth("at first", http.StatusOK) // a device has no carrier while it gets its program
	wire, err := link.Load()
	require(t, err)
	defer wire.Close()
	put := func(fd int) (err error) {
		return h.space.Do(func() error {
			device, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetXdpFdWithFlags(device, fd, nl.XDP_FLAGS_DRV_MODE)
		})
	}
	var theirs uint32
	h.whileStopped(func() { // or the daemon, which attaches again at once, is quicker
		h.detach("xdp")
		require(t, put(wire.PassFD()))
		theirs = h.program()
	})
	h.await("the complaint", func(s api.LBStatus) bool {
		return !s.Ready && s.Interfaces["eth0"] == "not attached" && len(s.NotReady) == 1 &&
			strings.Contains(s.NotReady[0], fmt.Sprintf("program pass (id %d, native) is there", theirs))
	})
	if code := h.health(); code != http.StatusServiceUnavailable {
		t.Errorf("/healthz says %d without a program", code)
	}
	h.expectMetrics("without a program", "ballast_ready 0\n", `ballast_interface_attached{interface="eth0"} 0`)
	if h.program() != theirs {
		t.Error("the other program was thrown out")
	}
	require(t, put(-1))
	h.await("the load balancer to be back", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	h.awaitHealth("with the program back", http.StatusOK)
}

// Promise: Pins that are removed or unmounted are made again within about a second.
func TestPinsThatAreTakenAwayAreMadeAgain(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	ours := h.program()
	for what, takeAway := range map[string]func() error{
		"the pins are removed":         func() error { return os.RemoveAll(h.pinDir()) },
		"the file system is unmounted": func() error { return unix.Unmount(filepath.Join(h.runDir(), "bpf"), unix.MNT_DETACH) },
	} {
		before := pinned(t, h.pinDir())
		// The daemon may make them again while the directory is being removed.
		if err := takeAway(); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			t.Fatal(err)
		}
		h.eventually("the pins after "+what, func() bool { return pinned(t, h.pinDir()) == before })
		if h.program() != ours {
			t.Errorf("%s: the program is not attached any more", what)
		}
	}
	h.kill()
	if h.program() != ours {
		t.Error("the program ended with the process")
	}
	h.start()
	h.await("the next process", func(s api.LBStatus) bool { return s.Ready })
	if !strings.Contains(h.output.String(), `"took over"=true`) {
		t.Errorf("the maps were not taken over: %s", h.output.String())
	}
}

// answersEcho sends an echo request to the VIP: the program answers it, in the part that packets of no usual shape go to by a tail call.
func (h *lbHost) answersEcho() (answered bool) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() error {
		socket, err := net.Dial("ip4:icmp", "198.51.100.10")
		if err != nil {
			return err
		}
		defer socket.Close()
		if _, err := socket.Write([]byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}); err != nil {
			return err
		}
		require(h.t, socket.SetReadDeadline(time.Now().Add(hostDeadline)))
		answer := make([]byte, 64)
		n, err := socket.Read(answer)
		answered = err == nil && n >= 8 && answer[n-8] == 0
		return nil
	}))
	return answered
}

func TestPacketsOfEveryShapeGoOnWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	require(t, h.peer.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		_, vip, _ := net.ParseCIDR("198.51.100.10/32")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: device.Index, Dst: vip, Gw: net.IPv4(10, 9, 0, 1)})
	}))
	started := func(when string) (arrays []string) {
		t.Helper()
		h.awaitAfterStart()
		h.await("the load balancer", func(s api.LBStatus) bool { return s.Ready })
		h.kill()
		if !h.answersEcho() {
			t.Errorf("%s: no answer without the daemon", when)
		}
		arrays, err := filepath.Glob(filepath.Join(h.pinDir(), "program-*"))
		require(t, err)
		if len(arrays) != 1 {
			t.Errorf("%s: pins of programs are %q", when, arrays)
		}
		return arrays
	}
	first := started("at first")
	second := started("after a restart")
	if slices.Equal(first, second) {
		t.Errorf("two processes had the same pin %q", first)
	}
	require(t, os.Remove(second[0])) // a version whose program was one, and needed none
	started("after an upgrade")
}

// pinned names all that is pinned under dir.
func pinned(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	require(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && !entry.IsDir() {
			names = append(names, path)
		}
		return err
	}))
	return strings.Join(names, "\n")
}

func TestAnAgentsProgramsAreAttachedAgain(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newReadyAgent(t)
	exchange(t, h.echo())
	for hook, counter := range map[string]string{"ingress": "ingress_restored", "egress": "egress_marked"} {
		h.detach(hook)
		before := h.counters()[counter]
		h.eventually("hook "+hook, func() bool {
			conn := h.dial()
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Second)) // one that met a gap may stall for ever
			_, err := conn.Write([]byte("x"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			return err == nil && h.counters()[counter] > before
		})
	}
	h.detach("xdp")
	h.awaitTunnels("after the XDP program was detached")
}

// Promise: A program of others at tc that comes before an agent's is a problem with its name, in status and metrics, until it goes or the agent is started again, which puts its own
// first; the agent stays ready.
func TestAProgramBeforeAnAgentsIsNamed(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	h.onDevice(func(device netlink.Link) error {
		if !progtest.PutTheirsFirst(t, device.Attrs().Index) {
			t.Skip("this kernel has no tcx: filters have a test of their own")
		}
		return nil
	})
	h.await("the complaint", func(s api.AgentStatus) bool {
		return s.Ready && len(s.Problems) == 1 && strings.Contains(s.Problems[0], "program theirs (id ") && strings.Contains(s.Problems[0], "runs at ingress of eth0 before ours")
	})
	h.kill()
	h.start()
	h.await("its programs to be first", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	exchange(t, h.echo())
}

// Promise: An agent whose device has an XDP program of others is not ready and names it, throws nothing out, and takes tunnels once that program has gone.
func TestAnAgentNamesTheXDPProgramOfOthers(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newReadyAgent(t)
	fd := progtest.TheirXDP(t)
	put := func(fd int) {
		h.onDevice(func(device netlink.Link) error {
			return netlink.LinkSetXdpFdWithFlags(device, fd, nl.XDP_FLAGS_DRV_MODE)
		})
	}
	var theirs uint32
	h.whileStopped(func() {
		h.detach("xdp")
		put(fd)
		theirs = h.program()
	})
	h.await("the complaint", func(s api.AgentStatus) bool {
		return !s.Ready && says(s.NotReady, fmt.Sprintf("program theirs (id %d, native) is there", theirs))
	})
	if h.program() != theirs {
		t.Error("the other program was thrown out")
	}
	put(-1)
	h.await("the agent to be back", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	h.awaitTunnels("after the other program has gone")
}

// Promise: `--detach` of an instance that does not exist changes nothing.
// Also held by TestAMountThatOnlyOthersSeeIsLeftAlone.
func TestDetachOfAnInstanceThatIsNotThereChangesNothing(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	ours, before := h.program(), pinned(t, h.pinDir())
	err := h.remove("nosuch")
	if !errors.Is(err, instance.ErrNoInstance) {
		t.Errorf("detach of an unknown instance: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.runDir(), "nosuch")); !os.IsNotExist(err) {
		t.Errorf("it left a directory: %v", err)
	}
	if h.program() != ours || pinned(t, h.pinDir()) != before {
		t.Error("another instance lost something")
	}
	if err := h.remove("test"); err == nil {
		t.Error("a running instance was detached")
	}
}
