// Commands that wait: look again and again, and tell meanwhile how things stand.
package command

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Every looks at once and then in every period, until that has ended or failed, or ctx has ended.
func Every(ctx context.Context, period time.Duration, look func() (ended bool, err error)) (ended bool, err error) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if ended, err := look(); ended || err != nil {
			return ended, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-ticker.C:
		}
	}
}

// A Line tells how things stand: on a terminal it is renewed in place; elsewhere a line is added when they have changed.
type Line struct {
	Live  bool      // out is a terminal
	out   io.Writer // nil: nothing is told
	least time.Duration
	shown string
	at    time.Time
}

// NewLine adds lines, where there is no terminal, no more often than in every period.
func NewLine(out io.Writer, period time.Duration) *Line {
	return &Line{Live: IsTerminal(out), out: out, least: period}
}

// Renew tells how things stand now.
func (l *Line) Renew(text string) {
	switch {
	case l.out != nil && l.Live:
		Control(l.out, EraseLine)
		io.WriteString(l.out, text)
	case l.out != nil && text != l.shown && time.Since(l.at) >= l.least:
		fmt.Fprintln(l.out, text)
	default:
		return
	}
	l.shown, l.at = text, time.Now()
}

// Say says in a line of its own what has happened, in the place of how things stood; nothing: that is only taken away.
func (l *Line) Say(text string) {
	if l.Live && l.shown != "" {
		Control(l.out, EraseLine)
	}
	l.shown = ""
	if l.out != nil && text != "" {
		fmt.Fprintln(l.out, text)
	}
}

// Leave ends the line, which stays on the terminal.
func (l *Line) Leave() {
	if l.Live && l.shown != "" {
		fmt.Fprintln(l.out)
	}
}
