package daemon_test

import (
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

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

func TestADeviceThatTheProgramIsTakenOffIsNamedAndLoopbackAloneIsRefused(t *testing.T) {
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

func TestAStartThatFailsTakesBackWhatItAttachedAndNothingElse(t *testing.T) {
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
