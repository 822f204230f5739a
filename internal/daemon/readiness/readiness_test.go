package readiness

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// logged returns what Log writes, a line each, while health answers for each second.
func logged(t *testing.T, seconds int, health func(second int) []string) (lines []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+period/2)
		defer cancel()
		began := time.Now()
		Log(ctx, log, func() []string { return health(int(time.Since(began) / time.Second)) })
		lines = strings.Split(strings.TrimSpace(out.String()), "\n")
	})
	return lines
}

func TestADaemonThatStartsIsNotWarnedOfAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		health func(second int) []string
		want   string
	}{
		"ready at once": {func(int) []string { return nil }, "level=INFO msg=ready"},
		"soon": {func(second int) []string {
			return map[int][]string{0: {"a"}, 1: {"a"}, 2: {"b"}}[second]
		}, "level=INFO msg=\"not ready\" why=a|level=INFO msg=\"not ready\" why=b|level=INFO msg=ready"},
		"never": {func(int) []string { return []string{"a"} }, "level=INFO msg=\"not ready\" why=a|level=WARN msg=\"not ready\" why=a"},
		"no more": {func(second int) []string {
			return map[int][]string{3: {"a"}, 4: {"a"}}[second]
		}, "level=INFO msg=ready|level=WARN msg=\"not ready\" why=a|level=INFO msg=ready"},
	} {
		if have := strings.Join(logged(t, 20, test.health), "|"); have != test.want {
			t.Errorf("%s: have %s, want %s", name, have, test.want)
		}
	}
}
