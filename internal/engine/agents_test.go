package engine_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestServersWithoutTheirAgentAreMarked(t *testing.T) {
	e := engine.New(engine.Options{})
	through := fleettest.Service("through", 1)
	through.Service.Return = 1
	e.SetState(fleettest.View(1, fleettest.Service("web", 1, 2, 3), through))
	servers := e.Servers("")
	e.MarkAgents(servers, []pki.Identity{{Role: pki.Agent, Name: "s1"}, {Role: pki.Agent, Name: "host", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}}})
	var got []string
	for _, s := range servers {
		got = append(got, s.Service+" "+s.Server.Name+" "+s.Agent)
	}
	if want := []string{"through s1 ", "web s1 connected", "web s2 none", "web s3 connected"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
