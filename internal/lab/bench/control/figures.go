// What is made of the figures, and where some come from.
package control

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Specification constant (Spotlight V-C): "total packet length of 64 bytes (including packet headers) for control messages".
const spotlightPacket = 64

// Implementation constants.
const (
	headerBytes  = 14 + 20 + 32 // Ethernet, IPv4, TCP with timestamps
	segmentBytes = 1448         // that a packet of 1,500 bytes carries

	warmUp     = 2 * time.Second
	patience   = 60 * time.Second // for one answer of the peers, or of the controller
	retryPause = 50 * time.Millisecond
)

// Latency is the spread of a series by nearest rank.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func latencyOf(samples []float64) *Latency {
	if len(samples) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := func(percent int) float64 { return sorted[(len(sorted)*percent+99)/100-1] }
	return &Latency{rank(50), rank(99), rank(100)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// used returns the CPU time of this process so far, and the most memory that it has had.
func used() (cpu time.Duration, rssBytes int64) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it cannot fail for ourselves
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), usage.Maxrss << 10
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
