package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

// runs reports whether an XDP program is on the host's device.
func (h *host) runs() (attached bool) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err == nil && device.Attrs().Xdp != nil {
			attached = device.Attrs().Xdp.Attached
		}
		return err
	}))
	return attached
}

// expectFailure starts a daemon that must end by itself, and say why.
func (h *host) expectFailure(why string) {
	h.t.Helper()
	h.start()
	var exit *exec.ExitError
	if err := h.wait(); !errors.As(err, &exit) || !strings.Contains(h.output.String(), why) {
		h.t.Fatalf("the daemon ended with %v, and does not say %q: %s", err, why, h.output.String())
	}
}

func TestAPortThatIsTakenEndsALoadBalancerBeforeItAttaches(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.with("")
	var taken net.Listener
	require(t, h.space.Do(func() (err error) { taken, err = net.Listen("tcp", "10.9.0.1:9435"); return err }))
	defer taken.Close()
	h.expectFailure("serve metrics: listen tcp 10.9.0.1:9435")
	if h.runs() || strings.Contains(h.output.String(), "attached") {
		t.Error("it has attached its program all the same")
	}
}

// Promise: A load balancer that restarts with another `--interface` removes its program from the other devices
// with a warning, and refuses the loopback alone.
func TestADeviceThatTheProgramIsTakenOffIsNamedAndLoopbackAloneIsRefused(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.role = "wide-lb" // on eth0 and lo
	h.awaitAfterStart()
	h.kill()
	h.role = "lb"
	h.start()
	await.True(t, "the log", func() bool {
		return strings.Contains(h.output.String(), "taken off a device that an earlier process had it on") && strings.Contains(h.output.String(), "interface=lo")
	})
	h.kill()
	h.role = "lost-lb" // as by a mistaken --interface lo
	h.expectFailure("attach to the loopback device alone")
	if !h.runs() {
		t.Error("what forwarded was taken away")
	}
}

// A daemon of the other role that takes over, or removes, what is pinned would end what works on without its own daemon.
//
// Promise: A daemon refuses an instance of the other role, and the data path stays as it is.
func TestADaemonLeavesAnInstanceOfTheOtherRoleAlone(t *testing.T) {
	t.Parallel()
	for role, other := range map[string]string{"lb": "agent", "agent": "lb"} {
		t.Run(role, func(t *testing.T) {
			h := newHost(t, role, []string{"10.9.0.1/24", "10.9.0.2/24"}, []string{"10.9.0.3/24"})
			defer func() { h.role = role }()
			h.write(fmt.Sprintf(agentFile, 1))
			h.start()
			awaitStatus(h, "a daemon", func(s api.AgentStatus) bool { return s.Interfaces["eth0"] != "" })
			h.kill()
			ours, before := h.program(), pinned(t, h.pinDir())
			way := fmt.Sprintf("`ballast %s --detach --instance test --run-dir %s`", role, h.runDir())
			h.role = other
			h.expectFailure(way)
			if err := h.remove("test"); err == nil || !strings.Contains(err.Error(), way) {
				t.Errorf("--detach of %s: %v, which does not name %s", other, err, way)
			}
			if h.program() != ours || pinned(t, h.pinDir()) != before {
				t.Error("what was pinned is not what it was")
			}
		})
	}
}

func TestDetachSaysHowManyConnectionsItBreaks(t *testing.T) {
	t.Parallel()
	h := newReadyAgent(t)
	exchange(t, h.echo())
	exchange(t, h.dial())
	h.kill()
	require(t, h.remove("test"))
	if !strings.Contains(h.output.String(), "2 living connections carry cookies and break") {
		t.Errorf("it says %s", h.output.String())
	}
}

func TestAStartThatFailsTakesBackWhatItAttachedAndNothingElse(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.with("")
	h.role = "greedy-lb" // on lo, too, which has no native mode
	h.expectFailure("attach to lo")
	if !strings.Contains(h.output.String(), "msg=attached interface=eth0") {
		t.Fatal("it did not attach to eth0 first: this shows nothing")
	}
	left, err := filepath.Glob(filepath.Join(h.runDir(), "bpf", "test", "*"))
	require(t, err)
	if len(left) > 0 {
		t.Errorf("pinned is %q", left)
	}
	h.eventually("the program to go from eth0", func() bool { return !h.runs() }) // the kernel takes its time to free a link

	h.role = "lb"
	h.awaitAfterStart()
	h.kill()
	h.role = "greedy-lb"
	h.expectFailure("attach to lo")
	if !h.runs() {
		t.Error("a start that fails has taken away what an earlier process had attached")
	}
	h.role = "lb"
	h.awaitAfterStart()
	if !strings.Contains(h.output.String(), `"took over"=true`) {
		t.Error("the tables of the earlier process were not there to be taken over")
	}
}
