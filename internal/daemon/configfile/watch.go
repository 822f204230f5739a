package configfile

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// settle is how long a file must be left alone before it is read: editors write in several steps.
const settle = 50 * time.Millisecond

// maxLinks is how many symbolic links a path may lead through, as for the kernel.
const maxLinks = 40

// Watch calls changed after each change of the file and at each SIGHUP, until ctx ends. Directories are watched, so that a file that is replaced by
// rename, or is gone for a while, stays watched; those of all symbolic links on its path, too: a ConfigMap or Secret of Kubernetes changes by a link to a directory
// that is put in the place of another one, and nothing happens beside the file.
// What cannot be watched any more is said in the log.
func Watch(ctx context.Context, path string, log *slog.Logger, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	way, err := follow(watcher, path)
	if err != nil {
		watcher.Close()
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	w := watching{Watcher: watcher, path: path, way: way, log: log}
	go func() {
		defer watcher.Close()
		defer signal.Stop(hangup)
		w.run(ctx, hangup, changed)
	}()
	return nil
}

// watching is what follows a file.
type watching struct {
	*fsnotify.Watcher
	path string
	way  map[string]bool
	log  *slog.Logger
}

func (w *watching) run(ctx context.Context, hangup <-chan os.Signal, changed func()) {
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.Events:
			if w.way[event.Name] && !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Chmod) {
				w.again()
				timer.Reset(settle)
			}
		case <-w.Errors: // events were lost: links may lead elsewhere
			w.again()
			timer.Reset(settle)
		case <-hangup:
			w.again()
			timer.Reset(0)
		case <-timer.C:
			changed()
		}
	}
}

// again follows the path as it is now. Where that fails, what was watched stays so.
func (w *watching) again() {
	now, err := follow(w.Watcher, w.path)
	if err != nil {
		w.log.Error("the configuration file is not watched as it should be: send SIGHUP after a change", "error", err)
		return
	}
	w.way = now
}

// follow watches the directories of all that decides what a path leads to, and no others, and returns their names in these.
func follow(watcher *fsnotify.Watcher, path string) (way map[string]bool, err error) {
	for range maxLinks {
		way = wayTo(path)
		directories := map[string]bool{}
		for name := range way {
			directories[filepath.Dir(name)] = true
		}
		for directory := range directories {
			if err := watcher.Add(directory); err != nil {
				return nil, fmt.Errorf("watch %s: %w", directory, err)
			}
		}
		for _, directory := range watcher.WatchList() {
			if !directories[directory] {
				watcher.Remove(directory) // or it is gone, and its watch with it
			}
		}
		if maps.Equal(way, wayTo(path)) { // nothing has changed before it was watched
			break
		}
	}
	return way, nil
}

// wayTo are the symbolic links that an absolute path leads through, and where it ends: the file, or the first name that is not there.
func wayTo(path string) map[string]bool {
	way := map[string]bool{}
	names := strings.Split(path, "/")
	at := "/"
	for links := 0; len(names) > 0; {
		next := filepath.Join(at, names[0])
		names = names[1:]
		info, err := os.Lstat(next)
		switch {
		case err != nil || len(names) == 0 && info.Mode()&fs.ModeSymlink == 0:
			way[next] = true
			return way
		case info.Mode()&fs.ModeSymlink == 0:
			at = next
			continue
		}
		way[next] = true
		to, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return way
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		names = slices.Concat(strings.Split(to, "/"), names)
	}
	return way
}
