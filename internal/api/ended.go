// Why a daemon has ended, for ctl, which cannot ask it any more.
package api

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// reasonMost bounds what is kept of a reason, in bytes.
const reasonMost = 2 << 10

func endedPath(socket string) string { return socket + ".ended" }

// NoteEnd keeps why the daemon that listened on a socket ends, until the next one listens there. nil: it was told to, and there is nothing to
// say. It is to be called before the listener is closed: another daemon may have the socket then.
func NoteEnd(socket string, why error) {
	if why == nil {
		return
	}
	text := strings.ToValidUTF8(fmt.Sprintf("%.*s", reasonMost, why), "")
	_ = os.WriteFile(endedPath(socket), []byte(time.Now().UTC().Format(time.RFC3339)+" "+text), 0o600) // it is in the log
}

// ended is why and when the last daemon of a socket ended, empty: it is not known.
func ended(socket string) string {
	content, err := os.ReadFile(endedPath(socket))
	at, why, ok := strings.Cut(string(content), " ")
	if err != nil || !ok {
		return ""
	}
	return fmt.Sprintf("it ended at %s: %s", at, why)
}
