// An etcd in this process: of one controller by itself, or one of several (peers.go).
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"
)

// EmbedOptions say where it keeps its data.
type EmbedOptions struct {
	DataDir string   // etcd's files are in the folder etcd below it, which nobody else may read: there are keys in it
	Name    string   // of this controller; "": ballast
	Peering *Peering // nil: it stays by itself
	// Where etcdctl can reach it, for backups: "" for the socket DataDir/etcd/client.sock, which only root can use. Anything else gives
	// whoever reaches it all keys of the fleet.
	ClientURL string
	Log       *slog.Logger
	Ends      func(why error) // is called before the store ends this process, nil: nothing is
}

const (
	startTimeout = time.Minute // a large log is read

	// Implementation constants. Documents are at most some 100 kB and seldom change, so the log and the history are kept short.
	quotaBytes      = 2 << 30
	compactAfter    = "5m"
	snapshotEntries = 1000
	catchUpEntries  = 100
	defragmentMB    = 64 // at start, if as much is free
	slow            = time.Second

	maxSocketPath = 107 // sun_path
)

// Embed starts etcd in this process and returns its store.
func Embed(ctx context.Context, o EmbedOptions) (*Store, error) {
	dir, err := filepath.Abs(filepath.Join(o.DataDir, "etcd"))
	if err != nil {
		return nil, err
	}
	unlock, err := takeDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, err)
	}
	var stopping atomic.Bool
	if err := checkFiles(dir); err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, errors.Join(err, unlock()))
	}
	start := &starting{dir: dir, options: o, stopping: &stopping}
	server, err := start.member(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, errors.Join(err, unlock()))
	}
	client := v3client.New(server.Server)
	stop := func() error {
		stopping.Store(true)
		server.Close()
		return unlock()
	}
	s, err := newStore(client, "", "the store in "+dir, "is the disk slow or full, or do too few of the controllers run?", ownLimits, o.Log, stop)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	s.member, s.own = server, start
	s.alone = o.Peering != nil && o.Peering.Join != nil && voters(server) == 1
	if s.alone {
		o.Log.Warn(joinsNobody, "directory", dir)
	}
	// What had no room may have it since the store was defragmented; if not, etcd says so again.
	err = s.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return err
	})
	if err == nil && o.Peering != nil {
		err = s.readdress(ctx, o.Peering.Address)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if socket := filepath.Join(dir, "client.sock"); o.ClientURL == "" {
		if err := os.Chmod(socket, 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(err, s.Close())
		}
	}
	s.group.Go(func() { s.watchEnd(o.Log) })
	return s, nil
}

// takeDirectory makes the directory of an etcd, for this user and this process alone.
func takeDirectory(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others may read it (%v), and it has the keys of the fleet: chmod 700 it", info.Mode().Perm())
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner := make([]byte, 20)
		n, _ := file.Read(owner)
		return nil, errors.Join(fmt.Errorf("another process has it (pid %s): stop that one, or give this one a --data-dir of its own", owner[:n]), file.Close())
	}
	// The number is for the message above only.
	if err := errors.Join(file.Truncate(0), writeAt(file, fmt.Sprint(os.Getpid()))); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

func memberConfig(dir string, o EmbedOptions) (*embed.Config, error) {
	config := embed.NewConfig()
	config.Name, config.Dir = cmp.Or(o.Name, "ballast"), dir
	config.EnableGRPCGateway = false
	config.AuthToken = "" // nobody logs in
	config.QuotaBackendBytes = quotaBytes
	config.MaxRequestBytes, config.MaxTxnOps = maxRequestBytes, uint(ownLimits.Documents)
	config.AutoCompactionMode, config.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	config.SnapshotCount, config.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	config.BootstrapDefragThresholdMegabytes = defragmentMB
	config.WarningApplyDuration, config.WarningUnaryRequestDuration = slow, slow

	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client.sock")}
	if o.ClientURL != "" {
		parsed, err := url.Parse(o.ClientURL)
		if err != nil {
			return nil, err
		}
		client = *parsed
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	if client.Scheme == "unix" && len(client.Path) > maxSocketPath {
		config.ListenClientUrls = nil // we need none ourselves
		o.Log.Warn("the path of the data directory is too long for a socket: etcdctl cannot reach the store", "directory", dir)
	}
	// It listens for peers by itself nowhere. Of one that stays alone the address is a name only.
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	if o.Peering != nil {
		if err := o.Peering.applyTo(config); err != nil {
			return nil, err
		}
	}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	return config, nil
}
