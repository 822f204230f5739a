package daemons

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// terminal is what a terminal was sent.
type terminal struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *terminal) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

func (o *terminal) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

func TestATerminalIsToldWhatIsWaitedForOnceItTakesLong(t *testing.T) {
	for _, c := range []struct {
		name     string
		terminal bool
		ends     time.Duration
		said     bool
	}{{"long", true, 0, true}, {"not long", true, time.Hour, false}, {"no terminal", false, 0, false}} {
		var out terminal
		line := command.NewLine(&out, 0)
		line.Live = c.terminal
		p := newPatience(line, c.ends)
		p.doing("connecting to servers")
		if c.said {
			await.True(t, "it is told", func() bool { return strings.Contains(out.String(), "doctor: connecting to servers ...") })
		}
		p.end()
		if out.String() != "" && !c.said {
			t.Errorf("%s: told is %q", c.name, out.String())
		}
		if c.said && !strings.HasSuffix(out.String(), command.EraseLine) {
			t.Errorf("%s: the line stays: %q", c.name, out.String())
		}
	}
}
