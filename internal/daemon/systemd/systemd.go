// Package systemd tells the service manager how a daemon is: ready, in what state, alive, ending. Without one it does nothing. See sd_notify(3).
package systemd

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/ballast-lb/ballast/internal/daemon/periodic"
)

// maxStatus bounds a line of status: systemd drops messages of more than 4096 bytes.
const maxStatus = 1024

// Serve ends the start of the unit, so that `systemctl start` returns, and tells until ctx ends that the daemon lives, if the unit has
// WatchdogSec=. turn waits until it is its turn among all that the daemon does under its locks: of one that is stuck there nothing is heard any
// more, and systemd starts another. When ctx has ended it says what the daemon leaves.
func Serve(ctx context.Context, log *slog.Logger, turn func(), leaves string) {
	notify(log, daemon.SdNotifyReady)
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog of systemd is not served", "error", err)
	}
	if limit > 0 {
		periodic.Every(ctx, max(limit/4, time.Millisecond), func(time.Time) {
			turn()
			notify(log, daemon.SdNotifyWatchdog)
		})
	}
	<-ctx.Done()
	notify(log, daemon.SdNotifyStopping+"\nSTATUS="+line("stopped: "+leaves))
}

// Status is the line that `systemctl status` shows.
func Status(log *slog.Logger, text string) { notify(log, "STATUS="+line(text)) }

func notify(log *slog.Logger, message string) {
	if _, err := daemon.SdNotify(false, message); err != nil {
		log.Warn("systemd is not notified", "message", message, "error", err)
	}
}

// line is one line of valid UTF-8 that fits: parts of it come from other hosts, and a second line would be another message.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= maxStatus {
		return text
	}
	end := maxStatus
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
