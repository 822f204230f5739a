// How a process ends whose embedded etcd cannot go on, as with a full disk or damaged files: with one line that says why.
package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// restore has both remedies, as nobody knows here whether there are other controllers. A backup restored beside them would be a second store.
const restore = "if the other controllers work, move its --data-dir away and start it with --join: it gets their copy; if there are none, restore a backup (docs/run/operate.md)"

// checkFiles finds what etcd would end this process for: where its database lacks its end, touching that is a fault of memory.
func checkFiles(dir string) error {
	path := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	files, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: slow})
	if err != nil {
		return fmt.Errorf("%s is damaged: %w: %s", path, err, restore)
	}
	defer files.Close()
	return files.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%s is damaged: it has %d bytes of %d: %s", path, info.Size(), tx.Size(), restore)
		}
		return nil
	})
}

// end is what etcd does when it cannot go on, in whatever goroutine: this process ends with one line that says why.
type end struct {
	log  *slog.Logger
	dir  string
	note func(error) // nil: nobody wants to know
}

// endingWith makes it so for a logger.
func endingWith(e end) []zap.Option { return []zap.Option{zap.WithPanicHook(e), zap.WithFatalHook(e)} }

// OnWrite implements zapcore.CheckWriteHook.
func (e end) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		field.AddTo(encoder)
	}
	what, why := entry.Message, encoder.Fields["error"]
	remedy := remedyOf(fmt.Sprint(what, why))
	e.log.Error("the store cannot go on: this process ends", "directory", e.dir, "etcd", what, "error", why, "remedy", remedy)
	if e.note != nil {
		e.note(fmt.Errorf("the store in %s cannot go on: %s: %v: %s", e.dir, what, why, remedy))
	}
	os.Exit(1)
}

// remedyOf says what to do about the last words of etcd.
func remedyOf(text string) string {
	switch {
	case strings.Contains(text, unix.ENOSPC.Error()), strings.Contains(text, unix.EDQUOT.Error()):
		return "make room on its disk and start again: no accepted change is lost"
	case strings.Contains(text, "tocommit(") && strings.Contains(text, "is out of range"):
		return "its log lacks entries that the others have from it: remove it with `ballast ctl controller remove`, empty its --data-dir and start it with --join"
	}
	return "if its files are damaged: " + restore
}
