package etcd

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

func TestWhoCannotReachEtcdIsToldWhatToLookAt(t *testing.T) {
	nobody := loopbackURL(t, "http")
	ctx, cancel := context.WithTimeout(t.Context(), 10*callTimeout) // it gives up by itself, long before
	defer cancel()
	_, err := Connect(ctx, ConnectOptions{Endpoints: []string{nobody}, Log: quiet})
	if err == nil {
		t.Fatal("connected to nobody")
	}
	for _, wanted := range []string{"reach etcd at " + nobody, "is it running", "connection refused"} {
		if !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v does not say %q", err, wanted)
		}
	}
	if ctx.Err() != nil {
		t.Error("it did not give up by itself")
	}
	if _, err := Connect(t.Context(), ConnectOptions{Log: quiet}); err == nil || !strings.Contains(err.Error(), "name one") {
		t.Errorf("without endpoints: %v", err)
	}
}

func TestEtcdIsReachedByCertificatesOfOurAuthority(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Init(dir, pki.DefaultAuthorityLife, false); err != nil {
		t.Fatal(err)
	}
	for _, request := range []pki.Request{
		{Role: pki.Etcd, Name: "etcd-1", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, {Role: pki.Controller, Name: "c1"},
	} {
		if err := pki.Issue(dir, request); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	_, endpoints := cluster(t, 1, files{file("ca.crt"), file("etcd-1.crt"), file("etcd-1.key")})
	s := connected(t, ConnectOptions{Endpoints: endpoints, CA: file("ca.crt"), Certificate: file("c1.crt"), Key: file("c1.key")})
	if _, err := s.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte("1")}}); err != nil {
		t.Error(err)
	}
	if _, err := Connect(t.Context(), ConnectOptions{Endpoints: endpoints, CA: file("ca.crt"), Log: quiet}); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
	if _, err := Connect(t.Context(), ConnectOptions{Endpoints: endpoints, CA: file("none.crt"), Log: quiet}); err == nil || !strings.Contains(err.Error(), "none.crt") {
		t.Errorf("without the authority's file: %v", err)
	}
}
