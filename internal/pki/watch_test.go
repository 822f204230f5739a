package pki

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAKeyThatDoesNotFitItsCertificateIsSaidOnceWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // certificates are of its time
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
		ctx, end := context.WithCancel(t.Context())
		said := make(chan string, 10)
		ended := make(chan struct{})
		go func() { credentials.Watch(ctx, slog.New(slog.NewTextHandler(writerTo(said), nil))); close(ended) }()
		look := func(what string, after time.Duration, lines int, part string) {
			t.Helper()
			time.Sleep(after) // of the bubble: no time passes
			synctest.Wait()
			text := ""
			have := len(said)
			for range have {
				text += <-said
			}
			if have != lines || !strings.Contains(text, part) {
				t.Errorf("%s: said %q, want %d lines and %q", what, text, lines, part)
			}
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

// writerTo sends each line.
type writerTo chan<- string

func (w writerTo) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}
