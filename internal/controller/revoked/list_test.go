package revoked

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// A store that was restored from a copy gets back what controllers that lived through it know, and loses what has expired.
//
// Promise: When the store is restored from a copy without a revocation, nodes and controllers that lived through
// it still apply it, and these write it again.
func TestRevocationsAreWrittenAgainIntoARestoredStoreAndExpireInIt(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	credentials := ca.Issue(pki.Controller, "c1")
	mirror := desired.NewMirror(s, fleettest.Log(t))
	list := NewList(Options{Name: "c1", Mirror: mirror, Writer: desired.NewWriter(mirror), Hub: hub.New(hub.Options{Name: "c1", Log: fleettest.Log(t)}),
		Credentials: credentials, Log: fleettest.Log(t)})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { mirror.Follow(ctx) })
	running.Go(func() { list.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for i := range 2 {
		r := pki.Revocation{Serial: fmt.Sprintf("%040x", i+1), Name: fmt.Sprint("server-", i), Role: pki.Agent, At: time.Now(), Ends: time.Now().Add(time.Hour)}
		document, err := documents.New().Put(documents.RevokedPrefix+r.Key(), r)
		fleettest.Require(t, err)
		_, err = s.Commit(t.Context(), []store.Document{document})
		fleettest.Require(t, err)
	}
	known := func(n int) {
		t.Helper()
		fleettest.Await(t, fmt.Sprintf("%d entries in the store", n), func() bool {
			now := mirror.Now()
			return now != nil && len(now.Revoked) == n
		})
	}
	known(2)
	fleettest.Await(t, "the controller goes by them", func() bool { n, _ := credentials.RevokedCount(); return n == 2 })
	now := mirror.Now()
	key := documents.RevokedPrefix + "serial/" + fmt.Sprintf("%040x", 1)
	_, err := s.Commit(ctx, []store.Document{{Key: key, Revision: now.Revisions[key]}})
	fleettest.Require(t, err)
	known(1)
	fleettest.Require(t, list.Keep(ctx, time.Now()))
	known(2)
	if n, _ := credentials.RevokedCount(); n != 2 {
		t.Errorf("%d are known", n)
	}
	fleettest.Require(t, list.Keep(ctx, time.Now().Add(time.Hour+grace)))
	known(0)
	if len(mirror.Now().History.Changes) != 0 {
		t.Error("people find it in the history")
	}
}
