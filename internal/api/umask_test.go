package api

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Applications of other users read files below the run directory, whose daemon runs with UMask=0077.
func TestAnUmaskShutsNobodyOutOfTheRunDirectory(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	dir := t.TempDir()
	socket := filepath.Join(dir, "run", "ballast", "one.sock")
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	keeps := filepath.Join(dir, "keeps")
	if err := os.Mkdir(keeps, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(keeps); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		filepath.Join(dir, "run"): 0o755, filepath.Dir(socket): 0o755, socket: 0o600, keeps: 0o700,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	if err := MakeDir(socket); err == nil {
		t.Error("a socket was taken for a directory")
	}
}
