package wrapper

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel ends a run when its thread gets a signal, as Go's runtime sends them to threads that take long.
func TestARunThatASignalEndsBeginsAnew(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	const repeat = 1_000_000
	cell := Cell{Frame: [FrameLength]byte{12: 8}, Flows: 1 << 20, Growth: 20}
	if err := errors.Join(b.Put(b.MinimalIPIP()), b.List(&cell, cell.Draw(repeat, 1), nil)); err != nil {
		t.Fatal(err)
	}
	discarded := uint64(0)
	for range 10 {
		if err := b.objects.State.Set(benchBenchState{}); err != nil {
			t.Fatal(err)
		}
		sent := make(chan error)
		go func() {
			var state benchBenchState
			for state.Runs == 0 { // Run has not begun
				if err := b.objects.State.Get(&state); err != nil {
					sent <- err
					return
				}
			}
			sent <- unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		}()
		run, err := b.Run(repeat)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if err != nil || run.Surprises > 0 || run.Runs != repeat {
			t.Fatalf("%d runs, %d surprises, %v", run.Runs, run.Surprises, err)
		}
		discarded += run.Discarded
	}
	if discarded == 0 {
		t.Error("none of ten signals ended a run, or what ran before it is not told")
	}
}
