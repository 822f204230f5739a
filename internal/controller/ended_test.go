package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Promise: `ctl status` says why a controller whose store is damaged has ended.
func TestCtlIsToldThatTheStoreIsDamaged(t *testing.T) {
	ca, dir, data := fleettest.NewAuthority(t), t.TempDir(), t.TempDir()
	ca.Issue(pki.Controller, "c1", "127.0.0.1")
	db := filepath.Join(data, "etcd", "member", "snap", "db")
	fleettest.Require(t, os.MkdirAll(filepath.Dir(db), 0o700))
	for _, garbage := range []string{"x", strings.Repeat("garbage ", 10000)} {
		fleettest.Require(t, os.WriteFile(db, []byte(garbage), 0o600))
		err := Run(t.Context(), Options{TLSDir: ca.Dir, Name: "c1", Listen: "127.0.0.1:0", DataDir: data, RunDir: dir, Log: fleettest.Log(t)})
		if err == nil {
			t.Fatal("it runs")
		}
		if _, asked := api.NewClient(api.SocketPath(dir, "c1")).Status(t.Context()); asked == nil || !strings.Contains(asked.Error(), db+" is damaged") {
			t.Errorf("it ended with %v, and ctl says %v", err, asked)
		}
	}
}
