package command

import (
	"log/slog"
	"strings"
	"testing"
)

func TestLinesInTheJournalHavePriorities(t *testing.T) {
	var out strings.Builder
	log := slog.New(newHandler(&out, slog.LevelInfo, true)).With("node", "lb1")
	log.Debug("not asked for")
	log.Info("ready")
	log.Warn("not ready", "why", "two\n<0>lines")
	log.WithGroup("bgp").Error("refused", "time", 3)
	want := `<6>level=INFO msg=ready node=lb1
<4>level=WARN msg="not ready" node=lb1 why="two\n<0>lines"
<3>level=ERROR msg=refused node=lb1 bgp.time=3
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestEachLineOfAnErrorHasItsPriority(t *testing.T) {
	var out strings.Builder
	prefixed{&out, errorPrefix}.Write([]byte("ballast: one\ntwo\n"))
	if got := out.String(); got != "<3>ballast: one\n<3>two\n" {
		t.Errorf("%q", got)
	}
}

func TestElsewhereLinesHaveTheirTime(t *testing.T) {
	var out strings.Builder
	slog.New(newHandler(&out, slog.LevelInfo, false)).Info("ready")
	if got := out.String(); !strings.HasPrefix(got, "time=") || !strings.HasSuffix(got, " level=INFO msg=ready\n") {
		t.Errorf("%q", got)
	}
}
