package configfile

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// tree is a directory with a file that is watched, and what changes saw in it.
type tree struct {
	*testing.T
	path string
	seen chan string
}

func (d *tree) do(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *tree) write(name, content string) {
	d.Helper()
	d.do(os.MkdirAll(filepath.Dir(name), 0o755))
	d.do(os.WriteFile(name, []byte(content), 0o644))
}

// swap puts a link in the place of another one at once.
func (d *tree) swap(to, link string) {
	d.Helper()
	d.do(os.Symlink(to, link+"_tmp"))
	d.do(os.Rename(link+"_tmp", link))
}

func (d *tree) watch() {
	d.Helper()
	d.seen = make(chan string, 100)
	d.do(Watch(d.Context(), d.path, slog.New(slog.DiscardHandler), func() {
		content, _ := os.ReadFile(d.path)
		d.seen <- string(content)
	}))
}

// await waits until a change shows this content.
func (d *tree) await(want string) {
	d.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case have := <-d.seen:
			if have == want {
				return
			}
		case <-deadline:
			d.Fatalf("nobody was told of %q", want)
		}
	}
}

// Promise: A configuration in a ConfigMap is read again each time that kubelet replaces it, by a link to a directory.
func TestAMountedConfigMapIsWatched(t *testing.T) {
	d := &tree{T: t}
	mount := t.TempDir()
	d.path = filepath.Join(mount, "lb.yaml")
	generations := []string{"..2026_12_01_00_00_00.1", "..2026_12_01_00_01_00.2", "..2026_12_01_00_02_00.3", "..2026_12_01_00_03_00.4"}
	d.write(filepath.Join(mount, generations[0], "lb.yaml"), "0")
	d.do(os.Symlink(generations[0], filepath.Join(mount, "..data")))
	d.do(os.Symlink("..data/lb.yaml", d.path))
	d.watch()
	for i, name := range generations[1:] { // as kubelet's AtomicWriter does
		d.write(filepath.Join(mount, name, "lb.yaml"), name)
		d.swap(name, filepath.Join(mount, "..data"))
		d.do(os.RemoveAll(filepath.Join(mount, generations[i])))
		d.await(name)
	}
}

// Links of operators lead elsewhere, through other links, and to what is not there yet.
func TestAFileBehindLinksIsWatched(t *testing.T) {
	d := &tree{T: t}
	root, err := filepath.EvalSymlinks(t.TempDir())
	d.do(err)
	at := func(name string) string { return filepath.Join(root, name) }
	d.write(at("v1/config/lb.yaml"), "first")
	d.do(os.Symlink("v1", at("current")))
	d.do(os.Mkdir(at("etc"), 0o755))
	d.path = at("etc/lb.yaml")
	d.do(os.Symlink(at("current/config/lb.yaml"), d.path))
	d.watch()
	d.write(at("v1/config/lb.yaml"), "written where it is")
	d.await("written where it is")
	d.write(at("v2/config/lb.yaml"), "another directory")
	d.swap("v2", at("current"))
	d.await("another directory")
	d.swap("v3", at("current"))
	d.write(at("v3-new/config/lb.yaml"), "a directory that came late")
	d.do(os.Rename(at("v3-new"), at("v3")))
	d.await("a directory that came late")
	d.do(os.Remove(d.path))
	d.write(d.path, "a file in the place of the link")
	d.await("a file in the place of the link")
	d.write(at("etc/new"), "replaced by rename")
	d.do(os.Rename(at("etc/new"), d.path))
	d.await("replaced by rename")
}

// lossy is a watcher that loses all events but those of the test, of a file whose link has changed since.
func lossy(d *tree) (w watching, events chan fsnotify.Event, lost chan error, log *bytes.Buffer) {
	d.Helper()
	root, err := filepath.EvalSymlinks(d.TempDir())
	d.do(err)
	d.write(filepath.Join(root, "v1/lb.yaml"), "first")
	d.write(filepath.Join(root, "v2/lb.yaml"), "second")
	d.path = filepath.Join(root, "etc/lb.yaml")
	d.do(os.Mkdir(filepath.Join(root, "etc"), 0o755))
	d.do(os.Symlink("../v1/lb.yaml", d.path))
	watcher, err := fsnotify.NewWatcher()
	d.do(err)
	d.Cleanup(func() { watcher.Close() })
	go func(all <-chan fsnotify.Event) {
		for range all {
		}
	}(watcher.Events)
	events, lost, log = make(chan fsnotify.Event, 1), make(chan error, 1), &bytes.Buffer{}
	watcher.Events, watcher.Errors = events, lost
	way, err := follow(watcher, d.path)
	d.do(err)
	d.swap("../v2/lb.yaml", d.path)
	return watching{Watcher: watcher, path: d.path, way: way, log: slog.New(slog.NewTextHandler(log, nil))}, events, lost, log
}

// runUntilChanged runs it until it tells of a change.
func (d *tree) runUntilChanged(w *watching) {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), 30*time.Second)
	defer cancel()
	told := false
	w.run(ctx, nil, func() { told = true; cancel() })
	if !told {
		d.Fatal("nobody was told")
	}
}

// Where events were lost, links may lead elsewhere since: what they lead to now is watched.
func TestAFileIsFollowedAgainWhereEventsWereLost(t *testing.T) {
	d := &tree{T: t}
	w, _, lost, log := lossy(d)
	lost <- fsnotify.ErrEventOverflow
	d.runUntilChanged(&w)
	if directory := filepath.Join(filepath.Dir(filepath.Dir(d.path)), "v2"); !slices.Contains(w.WatchList(), directory) || log.Len() > 0 {
		t.Errorf("%s is not watched: %v, %s", directory, w.WatchList(), log)
	}
}

// The kernel may have no room for one more watch: that is said, and the file is read.
func TestItIsSaidThatAFileCannotBeFollowed(t *testing.T) {
	for _, overflow := range []bool{false, true} {
		d := &tree{T: t}
		w, events, lost, log := lossy(d)
		d.do(w.Close())
		if overflow {
			lost <- fsnotify.ErrEventOverflow
		} else {
			events <- fsnotify.Event{Name: d.path, Op: fsnotify.Create}
		}
		d.runUntilChanged(&w)
		if !strings.Contains(log.String(), "is not watched as it should be") {
			t.Errorf("events were lost %v: the log has %q", overflow, log)
		}
	}
}

func TestALinkToItselfEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lb.yaml")
	if err := os.Symlink("lb.yaml", path); err != nil {
		t.Fatal(err)
	}
	if way := wayTo(path); !way[path] || len(way) != 1 {
		t.Errorf("%v", way)
	}
}
