package daemon_test

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

// Other software copies mounts into namespaces of its own (containers, services with PrivateTmp=). A copy of the file system of the pins
// keeps the links of a dead daemon after it has been unmounted, until the kernel has freed the last copy.
func TestADaemonWaitsForTheProgramOfADeadOneToGo(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	bystander := exec.Command("sleep", "infinity")
	bystander.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	require(t, bystander.Start())
	defer bystander.Wait()
	defer bystander.Process.Kill()
	h.kill()
	require(t, unix.Unmount(filepath.Join(h.runDir(), "bpf"), unix.MNT_DETACH))
	h.start()
	await.True(t, "it says that the device is busy", func() bool { return strings.Contains(h.output.String(), "waiting for it to go") })
	if connection, err := h.dialMetrics(); err == nil {
		connection.Close()
		t.Error("whoever checks it by TCP finds it alive while it forwards nothing")
	}
	require(t, bystander.Process.Kill())
	h.await("the device to be free", func(s api.LBStatus) bool { return s.Ready })
	connection, err := h.dialMetrics()
	require(t, err)
	connection.Close()
}

// dialMetrics is what a check by TCP does.
func (h *host) dialMetrics() (connection net.Conn, err error) {
	err = h.space.Do(func() (err error) { connection, err = net.Dial("tcp", "10.9.0.1:9435"); return err })
	return connection, err
}
