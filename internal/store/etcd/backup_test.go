package etcd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/store"
)

// filled is a store with two documents, one of them changed and one deleted since.
func filled(t *testing.T, o EmbedOptions) (s *Store, last uint64) {
	t.Helper()
	o.Log = quiet
	s, err := Embed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	first := put(t, s, store.Document{Key: "a", Value: []byte("old")}, store.Document{Key: "gone", Value: []byte("x")})
	return s, put(t, s, store.Document{Key: "a", Value: []byte("new"), Revision: first}, store.Document{Key: "gone", Revision: first})
}

func put(t *testing.T, s *Store, documents ...store.Document) uint64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), documents)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func backupTo(t *testing.T, s *Store, path string) []byte {
	t.Helper()
	from, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	content, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return content
}

// Promise: A backup that is restored after most controllers are lost has its content and a newer revision.
func TestARestoredStoreHasWhatTheBackupHadAndIsNewer(t *testing.T) {
	dir := t.TempDir()
	url := loopbackURL(t, "http")
	s, last := filled(t, EmbedOptions{DataDir: dir, ClientURL: url})
	for kind, from := range map[string]*Store{"own": s, "elsewhere": connect(t, url)} {
		path, to := filepath.Join(t.TempDir(), "fleet.db"), filepath.Join(t.TempDir(), "data")
		backupTo(t, from, path)
		if contents, err := ReadBackup(path); err != nil || contents.Revision != last || len(contents.Documents) != 1 || string(contents.Documents[0].Value) != "new" {
			t.Fatalf("%s: %+v, %v", kind, contents, err)
		}
		var group sync.WaitGroup // two at once: one of them does it
		errs := make([]error, 2)
		for i := range errs {
			group.Go(func() { errs[i] = Restore(path, to, quiet) })
		}
		group.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("%s: two at once: %v", kind, errs)
		}
		if err := Restore(path, to, quiet); err == nil || !strings.Contains(err.Error(), "there is a store already") {
			t.Errorf("%s: over a store: %v", kind, err)
		}
		if left, _ := filepath.Glob(filepath.Join(to, ".restore-*")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", kind, left)
		}
		restored, err := Embed(t.Context(), EmbedOptions{DataDir: to, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		documents, revision, err := restored.Load(t.Context())
		if err != nil || revision < last+revisionBump || len(documents) != 1 || string(documents[0].Value) != "new" {
			t.Errorf("%s: restored: %v at %d, %v", kind, documents, revision, err)
		}
		put(t, restored, store.Document{Key: "a", Value: []byte("newer"), Revision: documents[0].Revision})
		if err := restored.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Promise: Nothing is restored from a backup that is incomplete or damaged.
func TestNothingIsRestoredFromWhatIsNoWholeBackup(t *testing.T) {
	s, _ := filled(t, EmbedOptions{DataDir: t.TempDir()})
	dir := t.TempDir()
	path, to := filepath.Join(dir, "fleet.db"), filepath.Join(dir, "data")
	whole := backupTo(t, s, path)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for kind, content := range map[string][]byte{
		"empty": {}, "cut by a byte": whole[:len(whole)-1], "without checksum": whole[:len(whole)-32], "cut by a sector": whole[:len(whole)-512],
		"half": whole[:len(whole)/2], "one bit wrong": flipped, "too long": append(bytes.Clone(whole), make([]byte, 512)...), "text": []byte("services: []\n"),
		"zeros": make([]byte, 512+32),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Restore(path, to, quiet); err == nil || !strings.Contains(err.Error(), "is no whole backup") {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: something was restored", kind)
		}
	}
	if err := Restore(dir, to, quiet); err == nil {
		t.Error("a directory was restored")
	}
	other, err := Embed(t.Context(), EmbedOptions{DataDir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	backupTo(t, other, path)
	if err := Restore(path, to, quiet); err == nil || !strings.Contains(err.Error(), "has no fleet") {
		t.Errorf("an empty etcd: %v", err)
	}
}
