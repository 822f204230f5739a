package datapath

import (
	"os"
	"path/filepath"
	"testing"
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
	for range 2 {
		if err := RemoveBPFFS(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("still there: %v", err)
	}
}
