package datapath

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel ends a run when its thread gets a signal, as Go's runtime sends them to threads that take long.
func TestARunThatASignalEndsBeginsAnew(t *testing.T) {
	a := underAttack(t, nil)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	const repeat = 100_000
	for seed := range uint64(10) {
		mustSet(a.bench.objects.State.Set(benchBenchState{}))
		sent := make(chan error)
		go func() {
			var state benchBenchState
			for state.Runs == 0 { // Run has not begun
				if err := a.bench.objects.State.Get(&state); err != nil {
					sent <- err
					return
				}
			}
			sent <- unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		}()
		run, err := a.bench.Run(a.lb.Program(), a.benchCell(ack, 1<<20), repeat, seed)
		mustSet(<-sent)
		if err != nil || run.Surprises > 0 || run.Runs != repeat {
			t.Fatalf("%d runs, %d surprises, %v", run.Runs, run.Surprises, err)
		}
	}
}
