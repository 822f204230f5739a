package pki

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAKeyThatDoesNotFitItsCertificateIsSaidOnceWithTheReason(t *testing.T) {
	dir := fleet(t)
	credentials := load(t, dir, "lb")
	read := func(name string) []byte {
		content, err := os.ReadFile(keyPath(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	write := func(content []byte) {
		if err := os.WriteFile(keyPath(dir, "lb"), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	right, wrong := read("lb"), read("controller")
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var said bytes.Buffer
		ended := make(chan struct{})
		go func() { credentials.Watch(ctx, slog.New(slog.NewTextHandler(&said, nil))); close(ended) }()
		look := func(what string, after time.Duration, lines int, part string) {
			t.Helper()
			time.Sleep(after) // of the bubble: no time passes
			synctest.Wait()
			if text := said.String(); strings.Count(text, "\n") != lines || !strings.Contains(text, part) {
				t.Errorf("%s: said %q, want %d lines and %q", what, text, lines, part)
			}
			said.Reset()
		}
		look("in order", 3*watchPeriod, 0, "")
		write(append(wrong, '\n')) // of another size: the clock of files is not that of the bubble
		look("a foreign key", 3*watchPeriod, 1, "it does not belong to "+certificatePath(dir, "lb"))
		look("a day later", warnAgain, 1, "it does not belong to")
		write(right)
		look("mended", 3*watchPeriod, 1, "in order again")
		end()
		<-ended
	})
}
