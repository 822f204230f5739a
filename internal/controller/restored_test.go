package controller

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// cluster is an etcd that controllers reach by ways that can be held, and that can be stopped and started from a copy.
type cluster struct {
	t       *testing.T
	dir     string
	address string
	running *etcd.Store
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, dir: filepath.Join(t.TempDir(), "etcd"), address: freeAddress(t)}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var err error
	c.running, err = etcd.Embed(c.t.Context(), etcd.EmbedOptions{DataDir: filepath.Dir(c.dir), ClientURL: "http://" + c.address, Log: fleettest.Log(c.t)})
	fleettest.Require(c.t, err)
}

func (c *cluster) stop() { fleettest.Require(c.t, c.running.Close()) }

func (c *cluster) connect() (*link, store.Store) {
	way, address := newLink(c.t, c.address)
	s, err := etcd.Connect(c.t.Context(), etcd.ConnectOptions{Endpoints: []string{"http://" + address}, Log: fleettest.Log(c.t)})
	fleettest.Require(c.t, err)
	c.t.Cleanup(func() { way.hold(false); fleettest.Require(c.t, s.Close()) })
	return way, s
}

// copyTo copies the files of a store that is stopped.
func (c *cluster) copyTo(from, to string) {
	c.t.Helper()
	fleettest.Require(c.t, os.RemoveAll(to))
	fleettest.Require(c.t, os.CopyFS(to, os.DirFS(from)))
	fleettest.Require(c.t, os.Chmod(to, 0o700))
}

func TestControllersLiveThroughARestoreOfTheirStoreFromACopy(t *testing.T) {
	for name, since := range map[string]int{"that is older": 0, "that has had more changes since": 100} {
		t.Run(name, func(t *testing.T) { liveThroughARestore(t, since) })
	}
}

// liveThroughARestore has the store come to know so many changes before controllers reach it again.
func liveThroughARestore(t *testing.T, since int) {
	c, ca := newCluster(t), fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	var controllers []*running
	var ways []*link
	for i := range 2 {
		way, s := c.connect()
		ways, controllers = append(ways, way), append(controllers, startController(t, ca, fmt.Sprint("c", i+1), "127.0.0.1:0", s, nil))
	}
	t.Cleanup(func() { // before the controllers stop
		for _, way := range ways {
			way.hold(false)
		}
	})
	kept, gone := fleettest.LoadedService("kept", model.DispatchAWFD, 1, 2), fleettest.LoadedService("gone", model.DispatchAWFD, 1, 2)
	kept.Service.Load.Interval = model.Duration(50 * time.Millisecond)
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), controllers...)
	apply(t, controllers[0].client(operator), kept)
	c.stop()
	backup := filepath.Join(t.TempDir(), "copy")
	c.copyTo(c.dir, backup)
	c.start()
	var newest uint64
	for range 5 {
		apply(t, controllers[1].client(operator), kept, gone)
		newest = apply(t, controllers[0].client(operator), kept, fleettest.LoadedService("gone", model.DispatchAWFD, 1, 2, 3)).Revision
	}
	fleettest.Await(t, "the node knows the newest", func() bool { return lb.has(map[string]int{"kept": 2, "gone": 3}) })
	weights := func() (term uint64) {
		lb.locked(func() bool {
			if w := lb.weights["kept"]; w != nil {
				term = w.Term
			}
			return true
		})
		return term
	}
	fleettest.Await(t, "it has weights", func() bool { return weights() > 0 })

	for _, way := range ways {
		way.hold(true)
	}
	c.stop()
	c.copyTo(backup, c.dir)
	c.start()
	for range since {
		_, err := c.running.Commit(t.Context(), []store.Document{{Key: fmt.Sprint("of/another/", time.Now().UnixNano()), Value: []byte("{}")}})
		fleettest.Require(t, err)
	}
	for _, way := range ways {
		way.hold(false)
	}

	const restored = "the store was restored from a copy"
	for _, controller := range controllers {
		client := controller.client(operator)
		fleettest.Await(t, "who is asked knows what the store has, that it was restored, and who lives", func() bool {
			fleet, err := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
			nodes, failed := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
			if err != nil || failed != nil || fleet.Unconfirmed != "" || len(fleet.Services) != 1 {
				return false
			}
			ready, said := 0, 0
			for _, n := range nodes.Nodes {
				if n.Role == string(pki.Controller) && n.Ready == "yes" {
					ready++
				}
				if slices.ContainsFunc(n.Problems, func(p string) bool { return strings.Contains(p, restored) }) {
					said++
				}
			}
			return ready == 2 && said == 1
		})
	}
	if since == 0 {
		if !lb.has(map[string]int{"kept": 2, "gone": 3}) {
			t.Error("the node took an older state at once")
		}
		fleettest.Await(t, "no controller knows what the node has", func() bool {
			return lb.locked(func() bool {
				return lb.follower.AheadOfAllControllers(time.Now()) || lb.follower.AheadOfAllControllers(time.Now().Add(time.Hour))
			})
		})
		lb.locked(func() bool {
			if lb.follower.Revision != newest {
				t.Errorf("the node runs by %d, not by %d", lb.follower.Revision, newest)
			}
			lb.follower.Yield()
			clear(lb.weights)
			return true
		})
		lb.joined.Rejoin()
	}
	fleettest.Await(t, "the node has what the store has", func() bool { return lb.has(map[string]int{"kept": 2}) })
	fleettest.Await(t, "it is told weights", func() bool { return weights() > 0 })
	for _, controller := range controllers {
		added := fleettest.LoadedService("since", model.DispatchAWFD, 1)
		apply(t, controller.client(operator), kept, added)
		fleettest.Await(t, "the node knows what was changed", func() bool { return lb.has(map[string]int{"kept": 2, "since": 1}) })
		apply(t, controller.client(operator), kept)
	}
	fleettest.Await(t, "the problem has ended", func() bool {
		nodes, err := controllers[0].client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return !strings.Contains(fmt.Sprint(nodes), restored)
	})
}

// An entry from a clock that was ahead hides no later one.
//
// Promise: A name that was revoked by a clock that is ahead can be revoked again when the clock is right.
func TestARevocationFromTheFutureKeepsNobodyFromRevokingAgain(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	s := storetest.Open(t)
	r := pki.Revocation{Name: "a1", At: time.Now().Add(30 * 24 * time.Hour), Ends: time.Now().Add(365 * 24 * time.Hour)}
	value, err := json.Marshal(r)
	fleettest.Require(t, err)
	_, err = s.Commit(t.Context(), []store.Document{{Key: documents.RevokedPrefix + r.Key(), Value: value}})
	fleettest.Require(t, err)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	mustRevoke(t, c.client(ca.Issue(pki.Ctl, "me")), &ballastv1.RevokeCertificateRequest{Name: "a1"})
}
