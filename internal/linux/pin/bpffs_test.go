package pin

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBPFFSIsMountedOnceAndRemovedOnlyWhenEmpty(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() { RemoveBPFFS(dir) })
	for range 2 {
		if err := EnsureBPFFS(dir); err != nil {
			t.Fatal(err)
		}
	}
	instance := filepath.Join(dir, "default")
	if err := os.Mkdir(instance, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveBPFFS(dir); err != nil {
		t.Fatal(err)
	}
	if mounted, err := isBPFFS(dir); err != nil || !mounted {
		t.Fatalf("unmounted under an instance: %v", err)
	}
	os.Remove(instance)
	if err := os.Mkdir(filepath.Join(dir, HostPrefix+"1"), 0o700); err != nil { // what instances share is nobody's
		t.Fatal(err)
	}
	open, err := os.Open(dir) // as a child has it for a moment
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(5*busyInterval, func() { open.Close() })
	for range 2 {
		if err := RemoveBPFFS(dir); err != nil {
			t.Fatal(err)
		}
	}
	if mounted, err := isBPFFS(dir); err != nil || mounted {
		t.Fatalf("still mounted: %v", err)
	}
}

// The daemons of a machine start at the same time: a second mount would hide what is pinned in the first.
func TestBPFFSIsMountedOnceByThoseWhoStartAtTheSameTime(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "bpf")
	for range 300 {
		var starting sync.WaitGroup
		var ready atomic.Int32
		errs := make(chan error, 2)
		for range cap(errs) {
			starting.Go(func() {
				for ready.Add(1); ready.Load() < int32(cap(errs)); { // both at once
					runtime.Gosched()
				}
				errs <- EnsureBPFFS(dir)
			})
		}
		starting.Wait()
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if err := RemoveBPFFS(dir); err != nil {
			t.Error(err)
		}
		for n := 0; ; n++ {
			if mounted, err := isBPFFS(dir); err != nil || !mounted {
				break
			}
			t.Errorf("mounted %d times more than once", n+1)
			if err := unix.Unmount(dir, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestPinsOfAPrivateMountNamespaceAreSaidToEndWithIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	first, err := mounts("/proc/1/mountinfo")
	if err != nil {
		t.Skipf("pid 1 does not show its mounts: %v", err)
	}
	if own, err := mounts("/proc/self/mountinfo"); err != nil || !slices.Contains(first, own[0]) {
		t.Skipf("the test itself is in a mount namespace of its own: %v", err)
	}
	outside, inside := filepath.Join(t.TempDir(), "bpf"), filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() { RemoveBPFFS(outside) })
	if err := EnsureBPFFS(outside); err != nil {
		t.Fatal(err)
	}
	if why := Private(outside); why != "" {
		t.Errorf("in the host's mount namespace: %s", why)
	}
	said := make(chan [3]string)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""))
		before := Private(inside)
		err = errors.Join(err, EnsureBPFFS(inside))
		if err != nil {
			t.Error(err)
		}
		said <- [3]string{Private(outside), before, Private(inside)}
	}()
	if why := <-said; why[0] != "" || why[1] == "" || why[2] == "" {
		t.Errorf("a mount of the host's: %q, one's own before and after: %q", why[0], why[1:])
	}
}

// Linux unmounts a directory that is removed in every mount namespace: who sees no mount must not remove it.
func TestAMountThatOnlyOthersSeeIsLeftAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() { RemoveBPFFS(dir) })
	if err := EnsureBPFFS(dir); err != nil {
		t.Fatal(err)
	}
	instance := filepath.Join(dir, "default")
	if err := os.Mkdir(instance, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(instance) })
	elsewhere := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
		elsewhere <- errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
			unix.Unmount(dir, unix.MNT_DETACH), RemoveBPFFS(dir))
	}()
	if err := <-elsewhere; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(instance); err != nil {
		t.Fatalf("the pins of others are gone: %v", err)
	}
}
