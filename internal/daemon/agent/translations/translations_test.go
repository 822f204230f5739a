package translations

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/linux/server"
)

// room is a data path whose use is set.
type room struct {
	use  server.TranslatedUse
	err  error
	aged int
}

func (r *room) SweepTranslated(ages bool) (server.TranslatedUse, error) {
	if ages {
		r.aged++
	}
	return r.use, r.err
}

func monitor(path *room, wanted uint32, life time.Duration) *Monitor {
	m := New(path, wanted, slog.New(slog.NewTextHandler(io.Discard, nil)))
	m.life = func() time.Duration { return life }
	return m
}

// metrics counts those that a monitor exports.
func metrics(m *Monitor) int {
	out := make(chan prometheus.Metric, 10)
	m.Collect(out)
	return len(out)
}

func TestAFullRoomIsAProblem(t *testing.T) {
	for name, test := range map[string]struct {
		use    server.TranslatedUse
		wanted uint32
		want   string
	}{
		"empty":           {server.TranslatedUse{Room: 1000}, 0, ""},
		"below":           {server.TranslatedUse{Entries: 799, Room: 1000}, 1000, ""},
		"nearly full":     {server.TranslatedUse{Entries: 800, Room: 1000}, 0, "800 of 1000 entries"},
		"remedy":          {server.TranslatedUse{Entries: 800, Room: 1000}, 0, "--max-translated 2000 or more"},
		"evicted":         {server.TranslatedUse{Entries: 990, Room: 1000, Evicted: 7}, 0, "for want of room (7 in all)"},
		"another process": {server.TranslatedUse{Room: 1000}, 5000, "--max-translated 5000 is not in force: the map of an earlier process has room for 1000"},
	} {
		m, now := monitor(&room{use: test.use}, test.wanted, time.Hour), time.Unix(1e9, 0)
		if m.Problems(now) != nil || m.Status(now) != nil || metrics(m) != 0 {
			t.Errorf("%s: something is known before it was looked", name)
		}
		if m.Look(now); metrics(m) != 3 {
			t.Errorf("%s: there are %d metrics", name, metrics(m))
		}
		if have := strings.Join(m.Problems(now), "\n"); !strings.Contains(have, test.want) || (have == "") != (test.want == "") {
			t.Errorf("%s: %q, not %q", name, have, test.want)
		}
		if status := m.Status(now.Add(time.Minute)); status.Entries != test.use.Entries || status.Age.Duration() != time.Minute {
			t.Errorf("%s: %+v", name, status)
		}
		if test.use.Evicted > 0 && m.Problems(now.Add(evictionsLife)) == nil {
			t.Errorf("%s: a full room is no problem later", name)
		}
	}
}

// What could not be counted is told, and what was counted before is not taken for new.
func TestWhatCannotBeCountedIsTold(t *testing.T) {
	path := &room{use: server.TranslatedUse{Entries: 5, Room: 1000}}
	m, now := monitor(path, 0, 24*time.Hour), time.Unix(1e9, 0)
	m.Look(now)
	path.err = errors.New("no walk")
	now = now.Add(Period)
	m.Look(now)
	if have := m.Problems(now); len(have) != 1 || !strings.Contains(have[0], "no walk") {
		t.Errorf("%q", have)
	}
	if status := m.Status(now); status.Age.Duration() != Period {
		t.Errorf("%+v", status)
	}
	if path.err = nil; path.aged != 1 {
		t.Errorf("silence was counted %d times", path.aged)
	}
}

// A connection is silent for as long as translation remembers it, before it is freed.
func TestSilenceIsCountedAsTranslationForgets(t *testing.T) {
	for _, life := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, trackedLife} {
		path, now := &room{}, time.Unix(1e9, 0)
		m := monitor(path, 0, life)
		m.Look(now)
		began := now
		for path.aged < 1+server.SilentSweeps {
			now = now.Add(Period)
			m.Look(now)
		}
		if took := now.Sub(began); took < life || took > life+server.SilentSweeps*Period {
			t.Errorf("silence of %s is counted in %s", life, took)
		}
	}
	if life := trackedFor(); life < time.Minute {
		t.Errorf("connections are tracked for %s", life)
	}
}
