// Logs of daemons: lines for people and log collectors; in the journal of systemd with priorities.
package command

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// NewLog writes what a daemon has to say.
func NewLog(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(newHandler(os.Stderr, level, inJournal()))
}

// ForJournal is standard error, with the priority of errors if it is a connection to the journal.
func ForJournal(stderr io.Writer) io.Writer {
	if inJournal() {
		return prefixed{stderr, errorPrefix}
	}
	return stderr
}

// inJournal tells whether standard error is a connection to the journal.
func inJournal() bool {
	journaled, err := journal.StderrIsJournalStream()
	return err == nil && journaled
}

func newHandler(out io.Writer, level slog.Level, journaled bool) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if !journaled {
		return slog.NewTextHandler(out, options)
	}
	options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey { // the journal has it
			return slog.Attr{}
		}
		return a
	}
	handler := prioritized{}
	for _, of := range priorities {
		handler = append(handler, slog.NewTextHandler(prefixed{out, of.prefix}, options))
	}
	return handler
}

// priorities are those of syslog, as sd-daemon(3) wants them before a line, by the least level that has them.
var priorities = []struct {
	level  slog.Level
	prefix string
}{{slog.LevelError, errorPrefix}, {slog.LevelWarn, "<4>"}, {slog.LevelInfo, "<6>"}, {slog.LevelDebug, "<7>"}}

const errorPrefix = "<3>"

// prioritized has a handler for each of priorities.
type prioritized []slog.Handler

func (p prioritized) Enabled(ctx context.Context, level slog.Level) bool {
	return p[0].Enabled(ctx, level)
}

func (p prioritized) Handle(ctx context.Context, record slog.Record) error {
	for i, of := range priorities {
		if record.Level >= of.level {
			return p[i].Handle(ctx, record)
		}
	}
	return p[len(p)-1].Handle(ctx, record)
}

func (p prioritized) WithAttrs(attrs []slog.Attr) slog.Handler {
	return p.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (p prioritized) WithGroup(name string) slog.Handler {
	return p.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (p prioritized) each(change func(slog.Handler) slog.Handler) prioritized {
	next := make(prioritized, len(p))
	for i, h := range p {
		next[i] = change(h)
	}
	return next
}

// prefixed begins each line with a priority. It gets whole texts.
type prefixed struct {
	out    io.Writer
	prefix string
}

func (p prefixed) Write(text []byte) (int, error) {
	lines := strings.TrimSuffix(string(text), "\n")
	if _, err := io.WriteString(p.out, p.prefix+strings.ReplaceAll(lines, "\n", "\n"+p.prefix)+"\n"); err != nil {
		return 0, err
	}
	return len(text), nil
}
