package controller

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// lines is a log that a test reads.
type lines struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(p)
}

// with returns the lines that have all of these.
func (l *lines) with(all ...string) (found []string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(all, func(part string) bool { return !strings.Contains(line, part) }) {
			found = append(found, line)
		}
	}
	return found
}

func TestTheLogAndTheHistorySayWhoChangedWhat(t *testing.T) {
	ca, dir, log := fleettest.NewAuthority(t), t.TempDir(), &lines{}
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) {
		o.RunDir, o.Log = dir, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	alice, local := c.client(ca.Issue(pki.Ctl, "alice")), api.NewClient(api.SocketPath(dir, "c1")).Fleet()
	apply(t, alice, fleettest.Service("web", 1, 2))
	_, err := local.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s1"})
	fleettest.Require(t, err)
	if _, err := alice.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "none"}); err == nil {
		t.Error("a service was removed that is not there")
	}
	me := fmt.Sprintf("uid %d\"", os.Geteuid())
	for _, want := range [][]string{
		{"level=INFO", "msg=changed", "by.name=alice", "by.role=ctl", "by.address=127.0.0.1:", "revision=", "service web: added"},
		{"level=INFO", "msg=changed", me, "by.role=local", fmt.Sprintf("by.address=\"pid %d\"", os.Getpid()), "server s1: state active -> draining"},
		{"level=DEBUG", "refused", "by.name=alice", "none"},
	} {
		if found := log.with(want...); len(found) != 1 {
			t.Errorf("the log has %q lines with %q:\n%s", found, want, log.text.String())
		}
	}
	history, err := alice.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	if len(history.Changes) != 2 || history.Changes[0].Name != "alice" || history.Changes[0].Role != "ctl" || history.Changes[0].Address == "" ||
		history.Changes[1].Role != "local" || !strings.Contains(strings.Join(history.Changes[1].Changes, ""), "draining") || time.Since(history.Changes[1].Time.AsTime()) > time.Hour {
		t.Errorf("history: %v", history)
	}
}
