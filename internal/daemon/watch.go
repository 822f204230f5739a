package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
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

// loadFile reads a daemon's configuration, and says when others can read its keys.
func loadFile(path string, log *slog.Logger) (*config.File, error) {
	file, err := config.Load(path)
	if err == nil && file.Exposed != "" {
		log.Warn(file.Exposed)
	}
	return file, err
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

// ErrNoInstance: there is nothing to detach.
var ErrNoInstance = errors.New("no such instance")

// Detach removes the data path of an instance whose daemon does not run: packets take the host's ordinary way, and on a server
// connections that carry cookies break. With the last instance the file system of the pins goes.
func Detach(runDir, instance string) error {
	dir := pinDir(runDir, instance)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("detach %s: %w: nothing is pinned in %s, as this mount namespace shows it", instance, ErrNoInstance, dir)
	}
	listener, err := api.Listen(api.SocketPath(runDir, instance))
	if err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	defer listener.Close()
	if err := attach.FiltersElsewhere(dir); err != nil {
		return fmt.Errorf("detach %s: %w", instance, err)
	}
	if err := attach.Detach(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(runDir, instance)); err != nil {
		return err
	}
	return pin.RemoveBPFFS(filepath.Join(runDir, "bpf"))
}

// tryListen finds out, before anything is attached, whether an address can be listened on. It does not go on listening: whoever checks a
// load balancer by TCP must not reach one that does not forward yet.
func tryListen(what, address string) error {
	listener, err := listenAt(what, address)
	if listener != nil {
		err = listener.Close()
	}
	return err
}

// listenAt is a TCP listener; nil without an address.
func listenAt(what, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return listener, nil
}

// serveMetrics answers Prometheus, and whoever checks whether something keeps this daemon from its work, until ctx ends.
func serveMetrics(ctx context.Context, listener net.Listener, handler http.Handler, health func() []string) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+api.PathMetrics, handler)
	mux.HandleFunc("GET "+api.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		api.ServeHealth(w, health())
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: api.HeaderTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: api.IdleTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(limitMetrics(listener)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
