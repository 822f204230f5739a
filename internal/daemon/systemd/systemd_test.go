// What systemd hears, on a socket in its place.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// manager is a socket in the place of systemd's.
func manager(t *testing.T) (next func() string) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		socket.SetReadDeadline(time.Now().Add(10 * time.Second))
		buffer := make([]byte, 8192)
		n, err := socket.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
}

func TestTheManagerHearsOfStartStateAndEnd(t *testing.T) {
	next := manager(t)
	t.Setenv("WATCHDOG_USEC", "")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		Serve(ctx, slog.Default(), func() { t.Error("asked for a turn without a watchdog") }, "the data path stays attached")
		close(ended)
	}()
	expect(t, next, "READY=1")
	Status(slog.Default(), "not ready: no way is known to any of 2 servers")
	expect(t, next, "STATUS=not ready: no way is known to any of 2 servers")
	cancel()
	expect(t, next, "STOPPING=1\nSTATUS=stopped: the data path stays attached")
	<-ended
}

func expect(t *testing.T, next func() string, want string) {
	t.Helper()
	if got := next(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Reasons quote what other hosts say.
func TestTextOfOthersIsNoMessageOfItsOwn(t *testing.T) {
	next := manager(t)
	Status(slog.Default(), "refused by \xff\nSTOPPING=1\nWATCHDOG=trigger\r\x1b[2J"+strings.Repeat("ä", 5000))
	got := next()
	if strings.ContainsAny(got, "\n\r\x1b") || !utf8.ValidString(got) || len(got) > 1100 {
		t.Errorf("%d bytes: %.60q", len(got), got)
	}
}

func TestAStuckDaemonIsNotToldAlive(t *testing.T) {
	next := manager(t)
	t.Setenv("WATCHDOG_USEC", "4000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	ctx, cancel := context.WithCancel(context.Background())
	turns, ended := make(chan bool), make(chan bool)
	go func() {
		Serve(ctx, slog.Default(), func() { <-turns }, "nothing")
		close(ended)
	}()
	expect(t, next, "READY=1")
	for range 2 {
		turns <- true
		expect(t, next, "WATCHDOG=1")
	}
	Status(slog.Default(), "stuck") // a daemon that did not wait for its turn would be heard before
	expect(t, next, "STATUS=stuck")
	cancel()
	close(turns)
	<-ended
}

func TestNobodyIsToldWithoutAManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var said strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	Serve(ctx, slog.New(slog.NewTextHandler(&said, nil)), func() { t.Error("asked for a turn") }, "nothing")
	if said.Len() > 0 {
		t.Error(said.String())
	}
}
