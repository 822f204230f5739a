package daemon_test

import (
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
)

// reload is what a unit's ExecReload= asks for.
func (h *host) reload() error {
	path := strings.Replace(api.PathConfigAction, "{action}", "reload", 1)
	return h.client.Do(h.t.Context(), http.MethodPost, path, nil, nil)
}

// A unit is started as soon as the data path does what is known, or the boot would wait for controllers.
func TestALoadBalancerIsStartedForSystemdWithoutControllers(t *testing.T) {
	noRaces(t)
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require(t, err)
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	h := newRemoteHost(t)
	said := make(chan string, 100)
	go func() {
		defer close(said)
		buffer := make([]byte, 4096)
		for n, err := 0, error(nil); err == nil; n, err = socket.Read(buffer) {
			if n > 0 {
				said <- string(buffer[:n])
			}
		}
	}()
	h.start()
	missing := []string{"STATUS=not ready: no controller has sent a state yet", "READY=1"} // in any order
	await.Value(t, said, "systemd is told "+strings.Join(missing, ", "), func(message string) bool {
		missing = slices.DeleteFunc(missing, func(beginning string) bool { return strings.HasPrefix(message, beginning) })
		return len(missing) == 0
	})
	if err := h.reload(); err == nil || !strings.Contains(err.Error(), "no controller is connected") {
		t.Errorf("a reload that nobody can answer: %v", err)
	}
}
