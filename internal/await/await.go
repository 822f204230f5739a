// Package await is how tests wait: for conditions, never for time to pass. Its deadline is one that only a failure reaches.
package await

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"
)

// Between two looks passes a fiftieth of what it has taken so far, within these: looking may cost the machine more than what is waited for.
const (
	leastInterval = 2 * time.Millisecond
	mostInterval  = 50 * time.Millisecond
)

// deadline is a minute, on machines that are emulated a multiple of it: BALLAST_PATIENCE.
var deadline = func() time.Duration {
	times, err := strconv.Atoi(os.Getenv("BALLAST_PATIENCE"))
	if err != nil {
		times = 1
	}
	return time.Duration(times) * time.Minute
}()

var errNotYet = errors.New("it is not")

// Nil looks until the condition returns nil. What it returned last is why the test fails.
func Nil(t testing.TB, what string, condition func() error) {
	t.Helper()
	for begin := time.Now(); ; {
		err := condition()
		if err == nil {
			return
		}
		waited := time.Since(begin)
		if waited > deadline {
			t.Fatalf("wait until %s: not within %v: %v", what, deadline, err)
		}
		time.Sleep(min(max(waited/50, leastInterval), mostInterval))
	}
}

// True looks until the condition is true.
func True(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if condition() {
			return nil
		}
		return errNotYet
	})
}

// Value returns the first of the values that is as wanted.
func Value[T any](t testing.TB, values <-chan T, what string, wanted func(T) bool) (value T) {
	t.Helper()
	for end := time.After(deadline); ; {
		select {
		case value = <-values:
			if wanted(value) {
				return value
			}
		case <-end:
			t.Fatalf("wait until %s: not within %v; the last: %+v", what, deadline, value)
		}
	}
}
