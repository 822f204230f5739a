package lb

import (
	"net/netip"
	"slices"
	"testing"
)

// VIPs are often addresses of the host, and there may be thousands.
func TestAddressesThatTunnelsComeFromAreToldBeforeOthers(t *testing.T) {
	var local []netip.Addr
	for i := range 2000 {
		local = append(local, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	used := []netip.Addr{netip.MustParseAddr("2001:db8::11"), netip.MustParseAddr("10.9.0.11"), netip.MustParseAddr("10.9.0.11"), netip.MustParseAddr("fe80::1")}
	told := sourceTexts(used, append(local, netip.MustParseAddr("10.9.0.11"), netip.MustParseAddr("127.0.0.1")))
	if len(told) != mostSources || !slices.Equal(told[:3], []string{"10.9.0.11", "2001:db8::11", "10.0.0.0"}) {
		t.Errorf("%d: %q", len(told), told[:3])
	}
}
