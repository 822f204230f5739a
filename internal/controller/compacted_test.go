package controller

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// Promise: A fleet returns to a revision that etcd has compacted away.
func TestTheHistoryOutlivesCompaction(t *testing.T) {
	address := freeAddress(t)
	embedded, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: t.TempDir(), ClientURL: "http://" + address, Log: fleettest.Log(t)})
	fleettest.Require(t, err)
	t.Cleanup(func() { fleettest.Require(t, embedded.Close()) })
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", embedded, nil)
	me := c.client(ca.Issue(pki.Ctl, "me"))
	apply(t, me, fleettest.Service("web", 1, 2, 3))
	applied, err := me.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	revision, want := applied.Changes[0].Revision, fleetOf(t, me, 0)
	var last uint64
	for _, server := range []string{"s1", "s2"} {
		done, err := me.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: server, Force: true})
		fleettest.Require(t, err)
		last = done.Revision
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + address}})
	fleettest.Require(t, err)
	t.Cleanup(func() { client.Close() })
	_, err = client.Compact(t.Context(), int64(last), clientv3.WithCompactPhysical())
	fleettest.Require(t, err)
	c.stop()
	c = startController(t, ca, "c2", "127.0.0.1:0", embedded, nil)
	me = c.client(ca.Issue(pki.Ctl, "me"))
	fleettest.Await(t, "the next controller knows the state", func() bool {
		_, err := me.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		return err == nil
	})
	if have := fleetOf(t, me, revision); !proto.Equal(have, want) {
		t.Errorf("revision %d was\n%v, and is told as\n%v", revision, want, have)
	}
	_, err = me.Apply(t.Context(), everything(fleetOf(t, me, revision)))
	fleettest.Require(t, err)
	if have := fleetOf(t, me, 0); !proto.Equal(sorted(have), sorted(want)) {
		t.Errorf("rolled back to\n%v, want\n%v", have, want)
	}
}
