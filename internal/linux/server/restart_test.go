package server

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A process that ends after it has published rows and before sockets were told leaves that to the next one.
func TestNextProcessFinishesAChange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.MkdirTemp("", "ballast-srv-")
	must(err)
	must(pin.EnsureBPFFS(root))
	dir := root + "/test"
	t.Cleanup(func() { must(errors.Join(attach.Detach(dir), pin.RemoveBPFFS(root), os.Remove(root))) })
	generation := func(s *Server) (value uint32) {
		must(s.objects.Generation.Lookup(uint32(0), &value))
		return value
	}
	stops := map[netip.Addr]plan.Path{
		netip.MustParseAddr("10.9.0.3"): {Ifindex: 2, DestinationMAC: [6]byte{2, 1}, SourceMAC: [6]byte{2, 2}, VLAN: 300},
		netip.MustParseAddr("fd09::3"):  {Ifindex: 3, DestinationMAC: [6]byte{2, 3}, SourceMAC: [6]byte{2, 4}},
	}

	first, err := Open(dir, Limits{})
	must(err)
	must(first.SetStops(stops))
	must(first.publish(plan.VIPKey{PortKey: plan.PortKey{Port: [2]byte{0, 80}}}, plan.AgentRow{ID: 1, Flags: plan.AgentCookie}))
	before := generation(first)
	must(first.Close())

	second, err := Open(dir, Limits{})
	must(err)
	defer second.Close()
	if generation(second) == before {
		t.Error("sockets keep the cookie of before the change")
	}
	if have, err := second.Stops(); err != nil || !maps.Equal(have, stops) {
		t.Errorf("stops %v, %v; want %v", have, err, stops)
	}
}
