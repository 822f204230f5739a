package setup_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/setup"
)

// certified puts a certificate into a directory, as a machine does that joins the fleet of an authority.
func certified(t *testing.T, authority, dir, name string, role pki.Role) {
	t.Helper()
	signing, err := pki.Delegate(authority, 0)
	fleettest.Require(t, err)
	key, err := pki.NextKey(dir, name)
	fleettest.Require(t, err)
	chain, err := signing.Sign(&pki.Request{Role: role, Name: name, Life: time.Hour}, &key.PublicKey, time.Now())
	fleettest.Require(t, err)
	root, err := pki.ReadCertificate(filepath.Join(authority, "ca.crt"))
	fleettest.Require(t, err)
	fleettest.Require(t, errors.Join(pki.InstallRoot(dir, root, false), pki.Install(dir, name, chain)))
}

// Promise: What files stand in the way of is refused before the token is used, and leaves them as they are.
func TestFilesThatAreInTheWayAreFoundBeforeTheTokenIsUsed(t *testing.T) {
	own, foreign := fleettest.NewAuthority(t).Dir, fleettest.NewAuthority(t).Dir
	root, err := pki.ReadCertificate(filepath.Join(own, "ca.crt"))
	fleettest.Require(t, err)
	token := enrol.NewToken(pki.LB, pki.HashOf(root), time.Now().Add(time.Hour)).String()
	const asked = "no controller signs"
	for what, test := range map[string]struct {
		files  func(t *testing.T, tls string)
		again  bool
		wanted string
	}{
		"nothing":                       {func(*testing.T, string) {}, false, asked},
		"the own certificate":           {func(t *testing.T, tls string) { certified(t, own, tls, "lb1", pki.LB) }, true, asked},
		"another name of the fleet":     {func(t *testing.T, tls string) { certified(t, own, tls, "s1", pki.Agent) }, false, asked},
		"another role":                  {func(t *testing.T, tls string) { certified(t, own, tls, "lb1", pki.Agent) }, true, "lb1.crt is of agent lb1, and the token is for role lb"},
		"another fleet":                 {func(t *testing.T, tls string) { certified(t, foreign, tls, "s1", pki.Agent) }, false, "is of another fleet than the token"},
		"another fleet's other node":    {func(t *testing.T, tls string) { certified(t, foreign, tls, "s1", pki.Agent) }, true, "s1.crt beside it needs it"},
		"the own, of another fleet":     {func(t *testing.T, tls string) { certified(t, foreign, tls, "lb1", pki.LB) }, true, asked},
		"a key without its certificate": {func(t *testing.T, tls string) { write(t, filepath.Join(tls, "lb1.key")) }, true, "lb1.key is there already"},
		"a file for a directory":        {func(t *testing.T, tls string) { write(t, filepath.Join(tls, "../default")) }, false, "not a directory"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			tls := filepath.Join(dir, "tls")
			fleettest.Require(t, pki.Directory(tls))
			test.files(t, tls)
			before := contents(t, dir)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // who asks ends at once
			join := setup.Join{Host: setup.Host{TLSDir: tls, Defaults: filepath.Join(dir, "default"), Out: io.Discard}, Controllers: []string{"127.0.0.1:1"}, Token: token, Name: "lb1", Again: test.again}
			if err := join.Run(ctx); err == nil || !strings.Contains(err.Error(), test.wanted) {
				t.Errorf("it says %v", err)
			}
			if after := contents(t, dir); test.wanted != asked && after != before {
				t.Errorf("it has changed\n%s to\n%s", before, after)
			}
		})
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	fleettest.Require(t, os.WriteFile(path, []byte("mine\n"), 0o600))
}

// Promise: By --keep a valid certificate is enough, whatever is wrong with the token; without one that is an error.
func TestAValidCertificateIsKept(t *testing.T) {
	own := fleettest.NewAuthority(t).Dir
	root, err := pki.ReadCertificate(filepath.Join(own, "ca.crt"))
	fleettest.Require(t, err)
	dir := t.TempDir()
	join := func(tls, token string) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // who asks ends at once
		j := setup.Join{Host: setup.Host{TLSDir: tls, Defaults: filepath.Join(dir, "default"), Out: io.Discard}, Controllers: []string{"127.0.0.1:1"}, Token: token, Name: "lb1", Only: true, Keep: true}
		return j.Run(ctx)
	}
	valid, none := filepath.Join(dir, "valid"), filepath.Join(dir, "none")
	fleettest.Require(t, errors.Join(pki.Directory(valid), pki.Directory(none)))
	certified(t, own, valid, "lb1", pki.LB)
	before := contents(t, valid)
	for _, token := range []string{"", "bt1.x", enrol.NewToken(pki.LB, pki.HashOf(root), time.Now().Add(time.Hour)).String()} {
		if err := join(valid, token); err != nil {
			t.Errorf("token %q: %v", token, err)
		}
		if err := join(none, token); err == nil {
			t.Errorf("token %q: nothing is missing", token)
		}
	}
	if after := contents(t, valid); !strings.HasPrefix(after, before) {
		t.Errorf("it has changed\n%s to\n%s", before, after)
	}
}
