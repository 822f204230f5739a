// What becomes of a process whose embedded etcd cannot go on: each is one of its own.
package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/store"
)

// damagedVariable has the directory of the store that a process is to open: this program is also the processes of its tests.
const damagedVariable = "BALLAST_TEST_STORE"

// roomVariable has the size of a disk of its own that it does so on, which it fills.
const roomVariable = "BALLAST_TEST_STORE_ROOM"

func openAndFill(dir, room string) error {
	if room != "" {
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+room); err != nil {
			return err
		}
	}
	s, err := Embed(context.Background(), EmbedOptions{DataDir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return err
	}
	defer s.Close()
	if room == "" {
		return nil
	}
	for i := 0; ; i++ {
		if _, err := s.Commit(context.Background(), []store.Document{{Key: fmt.Sprint(i), Value: bytes.Repeat([]byte{byte(i)}, 500_000)}}); err != nil {
			return err
		}
	}
}

// ended runs a process with the store in dir, and returns what it said at its end.
func ended(t *testing.T, dir, room string) string {
	t.Helper()
	process := exec.Command("/proc/self/exe")
	process.Env = append(os.Environ(), damagedVariable+"="+dir, roomVariable+"="+room)
	if room != "" {
		process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	said, err := process.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v and said\n%s", err, said)
	}
	return string(said)
}

func TestADamagedStoreEndsInOneLine(t *testing.T) {
	whole := t.TempDir()
	s, err := Embed(t.Context(), EmbedOptions{DataDir: whole, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1, 100, 4096, 5000, 8192, 12288, 16384} {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(filepath.Join(whole, "etcd"))); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "etcd"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, "etcd/member/snap/db"), size); err != nil {
			t.Fatal(err)
		}
		if said := ended(t, dir, ""); strings.Count(said, "\n") != 1 || !strings.Contains(said, dir) || !joinsOrRestores(said) {
			t.Errorf("cut to %d bytes, it said\n%s", size, said)
		}
	}
}

// joinsOrRestores reports whether a remedy names the others' copy before a backup, which is older than that and another store.
func joinsOrRestores(remedy string) bool {
	join, backup := strings.Index(remedy, "--join"), strings.Index(remedy, "backup")
	return 0 <= join && join < backup
}

// etcd may warn before of what it tries in vain.
//
// Promise: A controller whose embedded store has no room or is damaged exits with status 1 and one line with the
// remedy, and nodes go on.
// Also held by TestADamagedStoreEndsInOneLine.
func TestAFullDiskEndsWithALineThatSaysSo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a disk of its own")
	}
	for _, room := range []string{"1m", "150m"} {
		said := ended(t, t.TempDir(), room)
		lines := strings.Split(strings.TrimSpace(said), "\n")
		if strings.Contains(said, "goroutine ") || !strings.Contains(lines[len(lines)-1], "make room on its disk") {
			t.Errorf("with %s, it said\n%s", room, said)
		}
	}
}

func TestAMemberWhoseLogIsShortIsToldToJoinAnew(t *testing.T) {
	text := "tocommit(11167) is out of range [lastIndex(11164)]. Was the raft log corrupted, truncated, or lost?"
	if remedy := remedyOf(text); !strings.Contains(remedy, "controller remove") || strings.Contains(remedy, "backup") {
		t.Errorf("the remedy is %q", remedy)
	}
	if remedy := remedyOf("walpb: crc mismatch"); !joinsOrRestores(remedy) {
		t.Errorf("the remedy of damaged files is %q", remedy)
	}
}
