// Copies of a store in one file, in the format of etcd's snapshots.
package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/store"
)

const (
	sector = 512 // a snapshot is whole sectors, and the checksum

	revisionBump = store.RevisionBump

	aloneURL = "http://localhost:2380" // of the only member of a restored store, until its controller says where it is
)

// Backup returns a copy of everything in etcd, with its keys, that is no older than the call, and ends with its checksum.
func (s *Store) Backup(ctx context.Context) (io.ReadCloser, error) {
	err := s.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := s.client.Get(ctx, s.documents(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.client.Snapshot(ctx)
}

// Contents are what a backup has of a fleet.
type Contents struct {
	Revision  uint64
	Documents []store.Document
}

// ReadBackup checks a backup from its first to its last byte.
func ReadBackup(path string) (*Contents, error) {
	contents, err := readBackup(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no whole backup: %w", path, err)
	}
	if len(contents.Documents) == 0 {
		return nil, fmt.Errorf("%s has no fleet below %s: is it of another program's etcd, or of one with another --etcd-prefix?", path, DefaultPrefix)
	}
	return contents, nil
}

func readBackup(path string) (*Contents, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if info.Size()%sector != sha256.Size {
		return nil, errors.New("it was cut off, or has another format")
	}
	if err := checkSum(path, info.Size()-sha256.Size); err != nil {
		return nil, err
	}
	database, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: slow})
	if err != nil {
		return nil, err
	}
	defer database.Close()
	contents := &Contents{}
	err = database.View(func(tx *bbolt.Tx) error {
		if tx.Size()+sha256.Size != info.Size() {
			return errors.New("it was cut off, or has another format")
		}
		for damage := range tx.Check() {
			return damage
		}
		bucket := tx.Bucket(schema.Key.Name())
		if bucket == nil {
			return errors.New("it has another format")
		}
		return contents.take(bucket)
	})
	return contents, err
}

// checkSum compares the bytes of a file up to its checksum with that.
func checkSum(path string, length int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, file, length); err != nil {
		return err
	}
	wanted, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(wanted, sum.Sum(nil)) {
		return errors.New("its checksum is wrong: it is damaged, or has another format")
	}
	return nil
}

// take reads all revisions of all keys, oldest first.
func (c *Contents) take(bucket *bbolt.Bucket) error {
	documents := map[string]store.Document{}
	err := bucket.ForEach(func(revision, value []byte) error {
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(value, &kv); err != nil {
			return err
		}
		at := mvcc.BytesToBucketKey(revision)
		c.Revision = max(c.Revision, uint64(at.Main))
		key, ours := strings.CutPrefix(string(kv.Key), DefaultPrefix+"documents/")
		switch {
		case !ours:
		case mvcc.IsTombstone(revision):
			delete(documents, key)
		default:
			documents[key] = store.Document{Key: key, Value: kv.Value, Revision: uint64(at.Main)}
		}
		return nil
	})
	for _, d := range documents {
		c.Documents = append(c.Documents, d)
	}
	return err
}

// Restore makes the store of one controller from a backup. The directory must have none yet; what was begun and not finished is not there.
func Restore(path, dataDir string, log *slog.Logger) error {
	if _, err := ReadBackup(path); err != nil {
		return err
	}
	dir := filepath.Join(dataDir, "etcd")
	if found, err := os.ReadDir(dir); err == nil && len(found) > 0 {
		return fmt.Errorf("restore to %s: there is a store already: name another --data-dir, or move this one away", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	begun, err := os.MkdirTemp(dataDir, ".restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(begun)
	var quiet atomic.Bool
	quiet.Store(true)
	const name = "ballast"
	made := filepath.Join(begun, "etcd")
	err = snapshot.NewV3(zapTo(log, &quiet)).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: name, OutputDataDir: made, PeerURLs: []string{aloneURL}, InitialCluster: name + "=" + aloneURL,
		InitialClusterToken: "etcd", RevisionBump: revisionBump, MarkCompacted: true,
	})
	if err == nil {
		err = os.Chmod(made, 0o700)
	}
	if err == nil {
		err = os.Rename(made, dir) // over an empty one; a store that has come to be there meanwhile stays
	}
	if err != nil {
		return fmt.Errorf("restore %s to %s: %w", path, dir, err)
	}
	return nil
}
