package setup

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

// drains answers a look by before, and a drain by after.
type drains struct {
	ballastv1connect.LeavingClient
	before, after *ballastv1.LeavingDrainResponse
	err           error // of a drain
}

func (d drains) Drain(_ context.Context, r *ballastv1.LeavingDrainRequest) (*ballastv1.LeavingDrainResponse, error) {
	if r.Look {
		return d.before, nil
	}
	return d.after, d.err
}

// Promise: What undoes `ballast leave --keep` is all that it did, and tells apart what had been drained before; where no controller is asked, none is named.
func TestWhatComesBackIsWhatWasTakenOff(t *testing.T) {
	server := func(name, state string) *ballastv1.ServerStatus {
		return &ballastv1.ServerStatus{Service: "web", Server: &ballastv1.Server{Name: name, State: state}, ConnectionsExact: true}
	}
	answer := func(onRing bool, node string, servers ...*ballastv1.ServerStatus) *ballastv1.LeavingDrainResponse {
		a := &ballastv1.LeavingDrainResponse{OnRing: onRing, Servers: servers}
		if node != "" {
			a.Node = &ballastv1.Node{Name: "n1", State: node}
		}
		return a
	}
	const before = "# it was draining before this; if it is not to stay so: ballast ctl "
	for name, test := range map[string]struct {
		role pki.Role
		asks ballastv1connect.LeavingClient
		back []string
	}{
		"a replica":                   {pki.LB, drains{before: answer(true, "active"), after: answer(true, "draining")}, []string{"node undrain n1", "replica undrain n1"}},
		"a replica that is no node":   {pki.LB, drains{before: answer(true, ""), after: answer(true, "")}, []string{"replica undrain n1"}},
		"a replica that must stay on": {pki.LB, drains{before: answer(true, "active"), after: answer(false, "draining")}, []string{"node undrain n1"}},
		"a node":                      {pki.LB, drains{before: answer(false, "active"), after: answer(false, "draining")}, []string{"node undrain n1"}},
		"a node drained before":       {pki.LB, drains{before: answer(false, "draining"), after: answer(false, "draining")}, []string{before + "node undrain n1"}},
		"servers, one drained before": {pki.Agent, drains{before: answer(false, "", server("a", "active"), server("b", "draining")),
			after: answer(false, "", server("a", "draining"), server("b", "draining"))}, []string{"server undrain web a", before + "server undrain web b"}},
		"controllers fail to drain":    {pki.LB, drains{before: answer(true, "active"), err: errors.New("no quorum")}, nil},
		"no controller has been asked": {pki.LB, nil, nil},
	} {
		var said bytes.Buffer
		l := Leave{Host: Host{Out: &said, RunDir: t.TempDir()}, Force: true, Keep: true,
			Left:   func(*Node) (uint64, bool, error) { return 0, false, nil },
			Detach: func(context.Context, *Node) error { return nil }}
		n := &Node{Role: test.role, Name: "n1", Instance: "x", RunDir: l.RunDir, client: test.asks, unasked: errors.New("none is named")}
		l.look(t.Context(), n)
		l.plan(t.Context(), n)
		if err := l.drain(t.Context(), n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.leave(t.Context(), n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := "is off. To undo that:\n  # start its daemon (instance x)\n"
		for _, line := range test.back {
			if !strings.HasPrefix(line, "#") {
				line = "ballast ctl " + line
			}
			want += "  " + line + "\n"
		}
		if !strings.HasSuffix(said.String(), want) {
			t.Errorf("%s: it says %q, want at its end %q", name, said.String(), want)
		}
		if strings.Contains(said.String(), "listed at the end") {
			t.Errorf("%s: it promises a list that does not come: %q", name, said.String())
		}
	}
}
