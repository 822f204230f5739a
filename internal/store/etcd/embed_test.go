package etcd

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/store"
)

func TestAnEmbeddedStoreOutlivesItsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for life := range 3 {
		s, err := Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		documents, _, err := s.Load(t.Context())
		if err != nil || len(documents) != min(life, 1) {
			t.Fatalf("in life %d there is %v, %v", life, documents, err)
		}
		d := store.Document{Key: "life"}
		if life > 0 {
			d = documents[0]
		}
		d.Value = fmt.Append(nil, life)
		if _, err := s.Commit(t.Context(), []store.Document{d}); err != nil {
			t.Fatal(err)
		}
		told, err := s.Join(t.Context(), store.Member{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		list(t, told, "a")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADirectoryHasOneProcess(t *testing.T) {
	dir := t.TempDir()
	s, err := Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet})
	if wanted := fmt.Sprintf("another process has it (pid %d): stop that one", os.Getpid()); err == nil || !strings.Contains(err.Error(), wanted) {
		t.Errorf("the second was told %v, want %q", err, wanted)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet}); err != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestOnlyItsOwnerCanReadAnEmbeddedStore(t *testing.T) {
	dir := t.TempDir()
	s, err := Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"etcd": 0o700, "etcd/client.sock": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	s.Close()
	if err := os.Chmod(filepath.Join(dir, "etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a directory for everybody: %v", err)
	}
}

func TestAPathTooLongForASocketIsNoObstacle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	s, err := Embed(t.Context(), EmbedOptions{DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestEtcdIsQuietWhileAllIsWell(t *testing.T) {
	var out bytes.Buffer
	s, err := Embed(t.Context(), EmbedOptions{DataDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if out.Len() > 0 {
		t.Errorf("it said\n%s", &out)
	}
}
