package doctor

import (
	"strings"
	"testing"
)

func TestADeviceThatDropsWithoutICMPIsToldFromANarrowTunnel(t *testing.T) {
	for mtu, effect := range map[int]string{1500: "clients find out by ICMP", 1400: "drops longer packets without ICMP"} {
		f := healthyFacts(RoleAgent)
		f.Devices[0].MTU = mtu
		found := judgeReturnMTU(f)
		if len(found) == 0 || found[0].Severity != Warning || !strings.Contains(found[0].Found, effect) {
			t.Errorf("MTU %d: %+v, want %q", mtu, found, effect)
		}
	}
}

func TestAnnouncedSegmentsMakeRoom(t *testing.T) {
	f := healthyFacts(RoleAgent)
	f.Devices[0].MTU, f.Host.DefaultRoutes[0].AdvMSS = 1500, 1416
	for _, found := range judgeReturnMTU(f) {
		if found.Severity != OK {
			t.Errorf("%+v", found)
		}
	}
}
