package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/pkg/quiclb"
)

// A host with connections of QUIC alone marks none, and has files for applications as long as it serves.
func TestAnAgentKeepsFilesForConnectionIDs(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	quic := func(current int) string {
		return strings.Replace(fmt.Sprintf(agentFile, current), "ports: [80]", "ports: [443], protocol: udp, affinity: quic", 1)
	}
	sum := h.write(quic(1))
	blocked := filepath.Join(h.runDir(), "quic")
	require(t, os.WriteFile(blocked, nil, 0o600))
	h.start()
	h.await("a host that files cannot be written on", func(s api.AgentStatus) bool {
		return s.Ready && strings.Contains(strings.Join(s.Problems, "\n"), blocked)
	})
	require(t, os.Remove(blocked))
	h.await("it again", func(s api.AgentStatus) bool { return len(s.Problems) == 0 })
	status := h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	path := filepath.Join(h.runDir(), "quic", "test", "web.json")
	if len(status.IDFiles) != 1 || status.IDFiles[0] != path || len(status.Services) != 0 || len(status.Problems) != 0 {
		t.Fatalf("status %+v", status)
	}
	config := func() byte {
		t.Helper()
		ids, err := quiclb.Open(path)
		require(t, err)
		id, err := ids.New()
		require(t, err)
		return id[0] >> 5
	}
	if got := config(); got != 1 {
		t.Errorf("ids of config %d", got)
	}
	sum = h.write(quic(2))
	h.await("the next key", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	if got := config(); got != 2 {
		t.Errorf("ids of config %d after the next key", got)
	}
	sum = h.write(fmt.Sprintf(agentFile, 2))
	status = h.await("TCP in its place", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || len(status.IDFiles) != 0 {
		t.Errorf("the file of a service that is gone is there: %v, %v", err, status.IDFiles)
	}
	sum = h.write(quic(2))
	h.await("QUIC again", func(s api.AgentStatus) bool { return s.Config.SHA256 == sum })
	if err := h.remove("test"); err == nil {
		t.Error("detached while the daemon runs")
	}
	config()
	h.kill()
	config() // applications start, and go on, without the daemon
	require(t, h.remove("test"))
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it has left: %v", err)
	}
}
