package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Promise: `ctl` says why a daemon that it does not reach has ended.
func TestAClientIsToldWhyTheDaemonHasEnded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ctl.sock")
	client := NewClient(socket)
	says := func(what string, wanted bool) {
		t.Helper()
		if _, err := client.Status(t.Context()); err == nil || strings.Contains(err.Error(), "load state: truncated") != wanted {
			t.Errorf("%s: %v", what, err)
		}
	}
	says("nothing has run", false)
	for _, why := range []error{nil, errors.New("load state: truncated"), errors.New(strings.Repeat("load state: truncated ", 1000))} {
		listener, err := Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(endedPath(socket)); err == nil {
			t.Error("a daemon that runs has ended")
		}
		NoteEnd(socket, why)
		listener.Close()
		says("it has ended", why != nil)
	}
	if info, err := os.Stat(endedPath(socket)); err != nil || info.Mode().Perm() != 0o600 || info.Size() > reasonMost+100 {
		t.Errorf("%+v: %v", info, err)
	}
	if err := os.WriteFile(endedPath(socket), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	says("what is kept makes no sense", false)
}
