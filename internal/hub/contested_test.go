package hub

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// counts keeps what is last known of an agent's connections.
type counts struct {
	ignored
	load *engine.Load
}

func (c *counts) Load(_ pki.Identity, load *engine.Load) { c.load = load }

// Two machines with one certificate throw each other out for ever. What one counts says nothing of the other.
//
// Promise: Two hosts with one node's certificate displace each other: PROBLEMS names both, the agent's count is
// not believed, and `key use` and `key drop` are refused.
func TestAnAgentWhosePlaceAnotherHostTakesIsNamedAndNotBelieved(t *testing.T) {
	told := &counts{}
	hub := testHub(t, func(o *Options) { o.Reports = told })
	view := fleettest.View(1, fleettest.Service("web", 3))
	hub.Topics.SetState(view)
	join := func(address string, addresses ...string) *peer {
		hello := &ballastv1.Hello{Addresses: addresses}
		p := newPeer(pki.Identity{Role: pki.Agent, Name: "s3"}, hello, &call{request: &http.Request{RemoteAddr: net.JoinHostPort(address, "40000")}}, &hub.options.Limits)
		hub.enter(p)
		return p
	}
	report := func(p *peer, connections uint32) {
		t.Helper()
		load := &ballastv1.LoadReport{Services: []*ballastv1.ServiceLoad{{Service: "web", Connections: connections}}}
		fleettest.Require(t, hub.report(p, &ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: load}}))
		fleettest.Require(t, hub.report(p, says([]uint32{1, 2}, 2, map[uint32]uint64{1: uint64(connections)})))
	}
	fleet := &model.Fleet{Keys: view.Keys}
	refused := func() string {
		return strings.Join(slices.Concat(hub.Nodes.Keys().DropRefused(fleet, 9), hub.Nodes.Keys().UseRefused(fleet, 2)), "\n")
	}
	report(join("10.0.0.13", "10.0.0.13", "fd00::13"), 7)
	report(join("fd00::13", "10.0.0.13", "fd00::13"), 7)
	if told.load.Queues["web"].Connections != 7 || len(hub.Nodes.List()[0].Problems) > 0 || strings.Contains(refused(), "both join") {
		t.Fatalf("a host with two addresses: %v, %v, %s", told.load, hub.Nodes.List()[0].Problems, refused())
	}

	const want = "10.0.0.14 and fd00::13 both join as s3"
	p := join("10.0.0.14", "10.0.0.14")
	report(p, 0)
	if problems := hub.Nodes.List()[0].Problems; len(problems) != 1 || !strings.HasPrefix(problems[0], want) {
		t.Errorf("problems %q", problems)
	}
	if len(told.load.Queues) > 0 {
		t.Errorf("its count is believed: %v", told.load)
	}
	if why := refused(); strings.Count(why, want) != 2 {
		t.Errorf("keys may be used and dropped but for %q", why)
	}

	p.since = time.Now().Add(-rivalLife)
	report(p, 2)
	if problems := hub.Nodes.List()[0].Problems; len(problems) > 0 || told.load.Queues["web"].Connections != 2 {
		t.Errorf("long after: %q, %v", problems, told.load)
	}
}
