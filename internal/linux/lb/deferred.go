// Packets that are counted in their entry a few packets later.
package lb

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// DeferCounts says whether packets of connections that have an entry may be counted there a few packets later (bpf/lb/affinity/deferred.h), which is
// several times as fast where there are many connections. It holds for this process; at first they may not.
func (lb *LB) DeferCounts(enabled bool) error {
	value := uint32(0)
	if enabled {
		value = 1
	}
	return lb.objects.DeferredEnabled.Set(value)
}

// FlushCounts counts the packets that wait for it, on every CPU that is online and in this process's cpuset, whatever its affinity: entries then
// tell of all packets that were sent before. It takes some 10 us for each CPU.
func (lb *LB) FlushCounts() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its affinity with it
		done <- lb.flushCounts()
	}()
	return <-done
}

func (lb *LB) flushCounts() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count packets that wait: find the CPUs: %w", err)
	}
	var errs []error
	for cpu := range cpus {
		var one unix.CPUSet
		one.Set(cpu)
		err := unix.SchedSetaffinity(0, &one)
		if errors.Is(err, unix.EINVAL) { // not online, or not ours
			continue
		}
		if err == nil {
			_, err = lb.objects.program("flush_counts").Run(&ebpf.RunOptions{Data: make([]byte, 64)})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count packets that wait on CPU %d: %w", cpu, err))
		}
	}
	return errors.Join(errs...)
}
