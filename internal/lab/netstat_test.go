package lab

import "testing"

func TestPacketsThatFoundAQueueFullAreAddedUp(t *testing.T) {
	const twoCPUs = "00000254 0000000a 00000001 00000000\n0000030b 00000100 00000000 00000000\n"
	if n := parseOverflowed([]byte(twoCPUs)); n != 266 {
		t.Errorf("%d packets, want 10 + 256", n)
	}
	if n := parseOverflowed([]byte("\nnothing\n0 what\n")); n != 0 {
		t.Errorf("%d packets in what says nothing", n)
	}
}

func TestALowerRateHasMoreTime(t *testing.T) {
	slow := Options{Rate: 0.25}
	if usual := (&Options{}).stretched(8); usual != 8 {
		t.Errorf("8 ns of the usual rate became %d", usual)
	}
	if got := slow.stretched(8); got != 32 {
		t.Errorf("8 ns at a quarter of the rate became %d", got)
	}
}
