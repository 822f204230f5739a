package world

import (
	"testing"
)

func TestPacketsThatFoundAQueueFullAreAddedUp(t *testing.T) {
	const twoCPUs = "00000254 0000000a 00000001 00000000\n0000030b 00000100 00000000 00000000\n"
	if n := parseOverflowed([]byte(twoCPUs)); n != 266 {
		t.Errorf("%d packets, want 10 + 256", n)
	}
	if n := parseOverflowed([]byte("\nnothing\n0 what\n")); n != 0 {
		t.Errorf("%d packets in what says nothing", n)
	}
}
