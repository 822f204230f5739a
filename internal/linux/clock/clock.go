// Package clock knows how the kernel's clocks differ.
package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// TAIOffset is how far CLOCK_TAI, which BPF programs read, is ahead of the time of day: 0 until somebody has told the kernel of leap seconds, so that hosts whose
// time of day is the same may differ by it.
func TAIOffset() (time.Duration, error) {
	var now unix.Timex
	_, err := unix.Adjtimex(&now)
	if err != nil {
		return 0, fmt.Errorf("ask the kernel how CLOCK_TAI differs (adjtimex): %w", err)
	}
	return time.Duration(now.Tai) * time.Second, nil
}
