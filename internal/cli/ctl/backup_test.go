package ctl_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller"
	documents "github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

func TestABackupReplacesAFileByForceAlone(t *testing.T) {
	store, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.Commit(t.Context(), []documents.Document{{Key: "any", Value: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, between := filepath.Join(dir, "fleet.db"), func() {}
	server := api.NewServer()
	server.HandleRaw("GET "+api.PathBackup, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := store.Backup(r.Context())
		if err != nil {
			t.Error(err)
			return
		}
		defer content.Close()
		between()
		io.Copy(w, content)
	}))
	ctx, stop := context.WithCancel(t.Context())
	listener, done := listen(t, "unix", filepath.Join(t.TempDir(), "ctl.sock")), make(chan error)
	go func() { done <- server.Serve(ctx, listener) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ctl := &terminal{t, nil, []string{"ctl", "--socket", listener.Addr().String()}}
	precious := func() {
		if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
			t.Error(err)
		}
	}
	stays := func(when string) {
		t.Helper()
		if content, err := os.ReadFile(file); err != nil || string(content) != "precious" {
			t.Fatalf("%s: it has %q, %v", when, content, err)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
			t.Errorf("%s: beside it is left %v, %v", when, names, err)
		}
	}
	between = precious
	ctl.refuse("backup "+file, "replace it with --force")
	stays("made by another while the store was copied")
	between = func() { t.Error("the store is copied for nothing") }
	ctl.refuse("backup "+file, "replace it with --force")
	stays("there before")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", file); err != nil {
		t.Fatal(err)
	}
	ctl.refuse("backup "+file, "replace it with --force")
	between = func() {}
	ctl.must("backup", "--force", file)
	if _, err := controller.SummariseBackup(file); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte(ctl.must("backup", "-")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := controller.SummariseBackup(file); err != nil {
		t.Errorf("what was written to standard output is no backup: %v", err)
	}
}
