package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

// settle is how long a file must be left alone before it is read: editors write in several steps.
const settle = 50 * time.Millisecond

// every calls do in each period until ctx ends.
func every(ctx context.Context, period time.Duration, do func(now time.Time)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			do(now)
		}
	}
}

// onHangup calls do at each SIGHUP until ctx ends: a node without a file asks its controllers for everything again.
func onHangup(ctx context.Context, do func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				do()
			}
		}
	}()
}

// watchFile calls changed after each change of the file and at each SIGHUP, until ctx ends. The directory is watched,
// so that a file that is replaced by rename, or is gone for a while, stays watched.
func watchFile(ctx context.Context, path string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		watcher.Close()
		return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	go func() {
		defer watcher.Close()
		defer signal.Stop(hangup)
		timer := time.NewTimer(0)
		<-timer.C
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-watcher.Events:
				if event.Name == path && !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Chmod) {
					timer.Reset(settle)
				}
			case <-watcher.Errors: // events were lost
				timer.Reset(settle)
			case <-hangup:
				timer.Reset(0)
			case <-timer.C:
				changed()
			}
		}
	}()
	return nil
}

// Detach removes the data path of an instance whose daemon does not run: packets take the host's ordinary way, and on a server
// connections that carry cookies break. With the last instance the file system of the pins goes.
func Detach(runDir, instance string) error {
	listener, err := api.Listen(api.SocketPath(runDir, instance))
	if err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	defer listener.Close()
	if err := datapath.Detach(pinDir(runDir, instance)); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(runDir, instance)); err != nil {
		return err
	}
	return datapath.RemoveBPFFS(filepath.Join(runDir, "bpf"))
}

// serveMetrics answers Prometheus, and whoever checks whether this daemon does its work, until ctx ends.
func serveMetrics(ctx context.Context, listener net.Listener, handler http.Handler, ready func() bool) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+api.PathMetrics, handler)
	mux.HandleFunc("GET "+api.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready: see `ballast ctl status`", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
