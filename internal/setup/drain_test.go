package setup_test

import (
	"context"
	"errors"
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
	left := func(count uint64) func() (uint64, bool, error) {
		return func() (uint64, bool, error) { return count, true, nil }
	}
	grows := func() (uint64, bool, error) { return packets.Add(1), true, nil }
	unreadable := func() (uint64, bool, error) { return 0, false, errors.New("of another version") }
	for name, test := range map[string]struct {
		role   pki.Role
		path   string
		answer func(*http.Request) (any, error) // nil: the daemon has ended
		left   func() (uint64, bool, error)     // of one that has ended
		force  bool
		leaves bool
		wanted string
	}{
		"packets come":                    {role: pki.LB, path: api.PathCounters, answer: counts, wanted: "packets were forwarded"},
		"connections live":                {role: pki.Agent, path: api.PathStatus, answer: lives(3), wanted: "3 connections with cookies live"},
		"a load balancer does not answer": {role: pki.LB, path: api.PathCounters, answer: hangs, wanted: "its daemon does not answer"},
		"an agent does not answer":        {role: pki.Agent, path: api.PathStatus, answer: hangs, wanted: "its daemon does not answer"},
		"connections of one that ended":   {role: pki.Agent, left: left(2), wanted: "2 connections with cookies live"},
		"packets come by one that ended":  {role: pki.LB, left: grows, wanted: "packets were forwarded"},
		"nobody can tell of one":          {role: pki.LB, left: unreadable, wanted: "of another version: start ballast-lb, or say --force"},
		"it is meant":                     {role: pki.Agent, left: left(2), force: true, leaves: true},
		"it is meant of a load balancer":  {role: pki.LB, left: unreadable, force: true, leaves: true},
		"no more packets come":            {role: pki.LB, left: left(7), leaves: true},
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
				Left: func(*setup.Node) (uint64, bool, error) {
					if test.left == nil {
						return 0, false, nil
					}
					return test.left()
				}, Detach: func(context.Context, *setup.Node) error { detached = true; return nil }}
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
