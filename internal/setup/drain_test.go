package setup_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/setup"
)

// Promise: While packets come through a load balancer, connections of a server live, or its daemon does not answer, a machine does not leave: at the
// deadline nothing has been removed.
func TestNothingIsRemovedWhileSomethingLives(t *testing.T) {
	var packets atomic.Uint64
	counts := func(*http.Request) (any, error) {
		return api.Counters{Counters: map[string]uint64{"forwarded_by_cookie": packets.Add(1), "passed_no_service": 7}}, nil
	}
	lives := func(living uint64) func(*http.Request) (any, error) {
		return func(*http.Request) (any, error) {
			return api.AgentStatus{Services: []string{"web"}, Echoes: map[uint32]uint64{1: living}}, nil
		}
	}
	hangs := func(r *http.Request) (any, error) { <-r.Context().Done(); return nil, r.Context().Err() }
	for name, test := range map[string]struct {
		role   pki.Role
		path   string
		answer func(*http.Request) (any, error) // nil: the daemon has ended
		left   uint64                           // connections of an agent that has ended
		force  bool
		leaves bool
		wanted string
	}{
		"packets come":                    {role: pki.LB, path: api.PathCounters, answer: counts, wanted: "packets were forwarded"},
		"connections live":                {role: pki.Agent, path: api.PathStatus, answer: lives(3), wanted: "3 connections with cookies live"},
		"a load balancer does not answer": {role: pki.LB, path: api.PathCounters, answer: hangs, wanted: "its daemon does not answer"},
		"an agent does not answer":        {role: pki.Agent, path: api.PathStatus, answer: hangs, wanted: "its daemon does not answer"},
		"connections of one that ended":   {role: pki.Agent, left: 2, wanted: "2 connections with cookies live"},
		"it is meant":                     {role: pki.Agent, left: 2, force: true, leaves: true},
		"nothing":                         {role: pki.LB, leaves: true},
		"nothing of an agent":             {role: pki.Agent, leaves: true},
		"nothing, but the daemon runs":    {role: pki.Agent, path: api.PathStatus, answer: lives(0), wanted: "runs: end it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "leave") // paths of sockets are short
			fleettest.Require(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			fleettest.Require(t, os.Mkdir(filepath.Join(dir, "default"), 0o755))
			options := "INSTANCE=x\nSOURCE=\"--controller 127.0.0.1:1 --name n1\"\n"
			fleettest.Require(t, os.WriteFile(filepath.Join(dir, "default", "ballast-"+string(test.role)), []byte(options), 0o644))
			if test.answer != nil {
				server := api.NewServer()
				server.Handle("GET "+test.path, test.answer)
				listener, err := api.Listen(api.SocketPath(filepath.Join(dir, "run"), "x"))
				fleettest.Require(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(ctx, listener) }()
				t.Cleanup(func() { cancel(); <-ended })
			}
			before, detached := contents(t, filepath.Join(dir, "default")), false
			l := setup.Leave{Host: setup.Host{TLSDir: filepath.Join(dir, "tls"), Defaults: filepath.Join(dir, "default"), RunDir: filepath.Join(dir, "run"), Out: io.Discard}, StateDir: filepath.Join(dir, "state"),
				Roles: []pki.Role{pki.Agent, pki.LB}, Deadline: 4 * time.Second, Force: test.force, Confirm: func([]string) error { return nil },
				Living: func(*setup.Node) (uint64, error) { return test.left, nil }, Detach: func(context.Context, *setup.Node) error { detached = true; return nil }}
			err = l.Run(t.Context())
			if left := err == nil; left != test.leaves || detached != test.leaves || !test.leaves && !strings.Contains(err.Error(), test.wanted) {
				t.Errorf("it leaves: %v, %v", detached, err)
			}
			if after := contents(t, filepath.Join(dir, "default")); (after == before) == test.leaves {
				t.Errorf("files are %s", after)
			}
		})
	}
}
