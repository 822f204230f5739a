package e2e

import "testing"

// Promise: The fragments of a datagram reach one server, which can put them together.
// Promise: IPv4 packets without Don't Fragment that are too big go in fragments, up to 8 fragments, 9216 bytes and
// 50,000 packets a second on each CPU; fragments of the client too.
// Also held by TestPacketsWithoutDontFragmentGoInFragments, TestPacketsThatAreTooBigGoToFunctionsInFragments,
// TestTimestampsOfFragmentedSegmentsAreRestored, TestForgedOrdersSendNothing and TestWhatGoesInFragmentsIsLimited.
// Promise: Fragments follow the first one, if it arrives first.
// Public: cilium/cilium#8185 (fragments of a datagram do not reach one backend).
func TestFragmentsReachOneServer(t *testing.T) {
	result := run(t, "fragments")
	if result.Completed != 640 {
		t.Errorf("%+v", result.Tally)
	}
}
