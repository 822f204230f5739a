package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestADiskThatIsAlmostFullIsAProblemBeforeTheStoreEnds(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	defer unix.Unmount(dir, 0)
	if problem := roomProblem(dir, 512<<10); problem != "" {
		t.Errorf("empty: %s", problem)
	}
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 700<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if problem := roomProblem(dir, 512<<10); !strings.Contains(problem, dir+" has room for 0 MB") {
		t.Errorf("almost full: %q", problem)
	}
	if problem := roomProblem(dir, roomLeast); problem == "" {
		t.Error("1 MB is room enough")
	}
	if problem := roomProblem("", roomLeast); problem != "" {
		t.Errorf("a store elsewhere: %s", problem)
	}
}
