package controller

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func sessionService(name string, ids ...int) engine.ServiceView {
	v := fleettest.Service(name, ids...)
	v.Service.Session = model.SessionTLS
	return v
}

// ticketAgent is an agent, as far as keys of tickets are concerned. It says which it has.
type ticketAgent struct {
	client *nodeclient.Client

	mutex sync.Mutex
	deaf  bool // it takes nothing that it is told
	last  int  // services that it was told of last, taken or not
	state nodeclient.State
}

func (a *ticketAgent) told() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.last
}

func joinTickets(t testing.TB, credentials *pki.Credentials, controllers ...*running) *ticketAgent {
	a := &ticketAgent{}
	o := nodeclient.Options{Credentials: credentials, Log: fleettest.Log(t).With("agent", credentials.Identity().Name),
		Hello: func() *ballastv1.Hello { return fleettest.Hello(credentials) }}
	for _, c := range controllers {
		o.Controllers = append(o.Controllers, c.address)
	}
	o.OnState = func(controller string, message *ballastv1.State) {
		a.client.Follow(controller, message, func() error {
			a.mutex.Lock()
			defer a.mutex.Unlock()
			next, err := a.state.After(message)
			if err == nil && !a.deaf {
				a.state = next
			}
			return err
		})
		a.mutex.Lock()
		a.last = len(message.Services)
		a.mutex.Unlock()
		a.report()
	}
	a.client = nodeclient.NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.client.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return a
}

func (a *ticketAgent) keys(service string) rotation.ServiceTickets {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.state.Tickets[service]
}

func (a *ticketAgent) report() {
	report := &ballastv1.KeyReport{Tickets: map[uint32][]byte{}}
	for _, k := range a.keys("web").Keys {
		report.Tickets[k.Epoch] = k.Fingerprint
	}
	a.client.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: report}})
}

func (a *ticketAgent) setDeaf(deaf bool) {
	a.mutex.Lock()
	a.deaf = deaf
	a.mutex.Unlock()
	if !deaf {
		a.client.Rejoin()
	}
}

// has waits until an agent makes tickets by the key of an epoch, and has as many keys.
func (a *ticketAgent) has(t testing.TB, epoch uint32, keys int) rotation.ServiceTickets {
	t.Helper()
	fleettest.Await(t, fmt.Sprintf("epoch %d in use of %d keys", epoch, keys), func() bool { k := a.keys("web"); return k.Current == epoch && len(k.Keys) == keys })
	return a.keys("web")
}

func settlesSoon(o *Options) { o.TicketSettle = 100 * time.Millisecond }

func useTickets(t testing.TB, client ballastv1connect.FleetClient, epoch uint32) error {
	_, err := client.UseTicketKey(t.Context(), &ballastv1.KeyRequest{Epoch: epoch})
	return err
}

func TestControllersGiveAllServersTheSameKeysOfTicketsAndTheNextOneFirst(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	controllers := []*running{startController(t, ca, "c1", "127.0.0.1:0", s, settlesSoon), startController(t, ca, "c2", "127.0.0.1:0", s, settlesSoon)}
	client := controllers[0].client(ca.Issue(pki.Ctl, "alice"))
	if err := useTickets(t, client, 0); connect.CodeOf(err) != connect.CodeFailedPrecondition && connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("keys that nobody needs: %v", err)
	}
	apply(t, client, sessionService("web", 1, 2))
	a, b := joinTickets(t, ca.Issue(pki.Agent, "s1"), controllers...), joinTickets(t, ca.Issue(pki.Agent, "s2"), controllers...)
	first := a.has(t, 1, 2)
	if other := b.has(t, 1, 2); other.Keys[0].Secret != first.Keys[0].Secret || other.Keys[1].Secret != first.Keys[1].Secret {
		t.Fatal("two servers have two keys")
	}
	refused := func(err error, why string) {
		t.Helper()
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), why) {
			t.Fatalf("%v, want a refusal that says %q", err, why)
		}
	}

	b.setDeaf(true) // B does not hear that epoch 2 is used, and of epoch 3; A does
	fleettest.Await(t, "epoch 2 may be used", func() bool { return useTickets(t, client, 2) == nil })
	a.has(t, 2, 3)
	fleettest.Await(t, "B to be all that is waited for", func() bool {
		err := useTickets(t, client, 3)
		return err != nil && strings.Contains(err.Error(), "agent s2 does not have the key of epoch 3") && !strings.Contains(err.Error(), "agent s1")
	})
	late, early := b.keys("web"), a.keys("web")
	if late.Current != 1 || len(late.Keys) != 2 || late.Keys[0].Secret != early.Keys[0].Secret || late.Keys[1].Secret != early.Keys[1].Secret {
		t.Errorf("each makes tickets by a key that the other has: %v, %v", late, early)
	}
	refused(useTickets(t, client, 0), "sessions would begin again")
	if err := useTickets(t, client, 9); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a key that is not there: %v", err)
	}
	list, err := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
	fleettest.Require(t, err)
	if list.Current != 2 || len(list.Keys) != 3 || !list.Needed || len(list.Behind) != 1 || list.Keys[0].Expires == nil || list.Keys[2].Expires != nil || list.Due == nil {
		t.Errorf("listed: %v", list)
	}
	b.setDeaf(false)
	fleettest.Await(t, "epoch 3 may be used", func() bool { return useTickets(t, client, 3) == nil })
	a.has(t, 3, 4)
	b.has(t, 3, 4)
	fleettest.Require(t, useTickets(t, client, 2)) // back, at once: all have it
	if back := b.has(t, 2, 4); back.Keys[2].Epoch != 3 {
		t.Errorf("back: %v", back)
	}

	if _, err = client.RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{}); len(api.WarningsOf(err)) != 1 {
		t.Errorf("revoked without a question: %v", err)
	}
	before := a.keys("web")
	_, err = client.RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{Force: true})
	fleettest.Require(t, err)
	after := a.has(t, 5, 2)
	for _, k := range before.Keys {
		if k.Secret == after.Keys[0].Secret || k.Secret == after.Keys[1].Secret {
			t.Errorf("epoch %d is there yet", k.Epoch)
		}
	}
	changes, err := client.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	said := fmt.Sprint(changes.Changes)
	for _, want := range []string{"ticket keys: epoch 3 is used in place of 2", "ticket keys: epoch 2 is used in place of 3", "ticket keys: all before epoch 5 are revoked"} {
		if !strings.Contains(said, want) || strings.Contains(said, "is made") {
			t.Errorf("the history is %s", said)
		}
	}
}

// Promise: Of several simultaneous rotations of ticket keys one is made, and the others find it done.
func TestOfManyWhoUseTheSameKeyAtOnceOneDoes(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	alice := ca.Issue(pki.Ctl, "alice")
	var clients []ballastv1connect.FleetClient
	var controllers []*running
	for _, name := range []string{"c1", "c2"} {
		c := startController(t, ca, name, "127.0.0.1:0", s, settlesSoon)
		controllers, clients = append(controllers, c), append(clients, c.client(alice))
	}
	apply(t, clients[0], sessionService("web", 1))
	a := joinTickets(t, ca.Issue(pki.Agent, "s1"), controllers...)
	a.has(t, 1, 2)
	for _, client := range clients {
		fleettest.Await(t, "the next key to be with all", func() bool {
			list, err := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
			fleettest.Require(t, err)
			return len(list.Keys) == 2 && len(list.Behind) == 0
		})
	}
	putTickets(t, s, func(k *rotation.TicketKeys) { k.Since = time.Now().Add(-25 * time.Hour) }) // controllers do, too
	done := make(chan int)
	for i := range 8 {
		go func() {
			answer, err := clients[i%2].UseTicketKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
			if err != nil {
				t.Error(err)
			}
			done <- len(answer.GetChanges())
		}()
	}
	changes := 0
	for range 8 {
		changes += <-done
	}
	if a.has(t, 2, 3); changes > 1 {
		t.Errorf("%d of 8 have turned the key", changes)
	}
}

// putTickets writes keys as if a controller had, some time ago. Both there are, the one in use and the next.
func putTickets(t testing.TB, s store.Store, change func(*rotation.TicketKeys)) {
	t.Helper()
	fleettest.Await(t, "the keys to be stored", func() bool {
		stored, _, err := s.Load(t.Context())
		fleettest.Require(t, err)
		now := documents.New()
		for _, d := range stored {
			fleettest.Require(t, now.Take(d, d.Revision))
		}
		if now.Tickets.Next() == 0 { // the controllers make it just now
			return false
		}
		next := now.Tickets
		change(&next)
		put, err := now.PutTickets(&next)
		fleettest.Require(t, err)
		_, err = s.Commit(t.Context(), []store.Document{put})
		return err == nil
	})
}

func TestKeysOfTicketsTurnByThemselvesOnceADay(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	controllers := []*running{startController(t, ca, "c1", "127.0.0.1:0", s, settlesSoon), startController(t, ca, "c2", "127.0.0.1:0", s, settlesSoon)}
	client := controllers[0].client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, sessionService("web", 1, 2))
	putTickets(t, s, func(k *rotation.TicketKeys) { k.Since = time.Now().Add(-26 * time.Hour) })
	fleettest.Await(t, "the next key to wait, and the reason", func() bool {
		list, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return strings.Contains(fmt.Sprint(list.Nodes), "epoch 1 is in use since") && strings.Contains(fmt.Sprint(list.Nodes), "server s1 of service web: no agent of it is connected")
	})
	a, b := joinTickets(t, ca.Issue(pki.Agent, "s1"), controllers...), joinTickets(t, ca.Issue(pki.Agent, "s2"), controllers...)
	a.has(t, 2, 3)
	b.has(t, 2, 3)
	b.setDeaf(true)
	putTickets(t, s, func(k *rotation.TicketKeys) {
		k.Since = time.Now().Add(-26 * time.Hour)
		k.Keys[2].Secret[0]++ // which b does not hear of
	})
	fleettest.Await(t, "the next key to wait again", func() bool {
		list, err := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
		fleettest.Require(t, err)
		return list.Current == 2 && strings.Contains(fmt.Sprint(list.Behind), "agent s2 does not have")
	})
	putTickets(t, s, func(k *rotation.TicketKeys) { k.Since = time.Now().Add(-49 * time.Hour) }) // another day
	a.has(t, 3, 4)
	b.setDeaf(false)
	putTickets(t, s, func(k *rotation.TicketKeys) {
		k.Keys[0].Made, k.Keys[0].Until = time.Time{}, time.Now().AddDate(0, 0, -10)
	})
	if left := a.has(t, 3, 3); left.Keys[0].Epoch != 2 {
		t.Errorf("of the epochs %v the first has expired", left)
	}
}

// A store that was restored makes another key of an epoch that agents had before: they do not count as having it.
//
// Promise: When the store is restored from a copy, its ticket keys count again, and another key of the same epoch
// is not taken for the same.
func TestAnotherKeyOfTheSameEpochIsNotTheSame(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, settlesSoon)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, sessionService("web", 1))
	a := joinTickets(t, ca.Issue(pki.Agent, "s1"), c)
	a.has(t, 1, 2)
	fleettest.Await(t, "the controller to know", func() bool {
		list, err := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
		fleettest.Require(t, err)
		return len(list.Behind) == 0
	})
	a.setDeaf(true)
	putTickets(t, s, func(k *rotation.TicketKeys) { k.Keys[1].Secret[0]++ })
	fleettest.Await(t, "the other key to be missed", func() bool {
		err := useTickets(t, client, 2)
		if err == nil {
			t.Fatal("a key that the agent does not have is used")
		}
		return strings.Contains(err.Error(), "agent s1 does not have the key of epoch 2")
	})
}

// Agents go on with the keys of a store that was lost, and take those of one that was restored.
//
// Promise: Agents keep their ticket keys when controllers start with an empty store; once the fleet is applied
// again there are new keys, and sessions begin again.
func TestAgentsKeepTheirKeysWhenTheStoreIsLost(t *testing.T) {
	ca, s, address := fleettest.NewAuthority(t), storetest.Open(t), freeAddress(t)
	c := startController(t, ca, "c1", address, s, settlesSoon)
	apply(t, c.client(ca.Issue(pki.Ctl, "alice")), sessionService("web", 1))
	a := joinTickets(t, ca.Issue(pki.Agent, "s1"), c)
	before := a.has(t, 1, 2)
	c.stop()
	c = startController(t, ca, "c1", address, storetest.Open(t), settlesSoon)
	fleettest.Await(t, "the agent to be told of nothing", func() bool { return a.told() == 0 })
	if now := a.keys("web"); !reflect.DeepEqual(now, before) {
		t.Errorf("an empty store leaves %v", now)
	}
	c.stop()
	startController(t, ca, "c1", address, s, settlesSoon)
	fleettest.Await(t, "the agent to be told of its service", func() bool { return a.told() == 1 })
	if now := a.keys("web"); !reflect.DeepEqual(now, before) {
		t.Errorf("the store that is back leaves %v", now)
	}
}

func TestNodesNeitherReadNorTurnKeysOfTickets(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	apply(t, c.client(ca.Issue(pki.Ctl, "alice")), sessionService("web", 1))
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		client := c.client(ca.Issue(role, "node"))
		_, listed := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
		_, used := client.UseTicketKey(t.Context(), &ballastv1.KeyRequest{Force: true})
		_, revoked := client.RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{Force: true})
		for _, err := range []error{listed, used, revoked} {
			if connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("%s: %v", role, err)
			}
		}
	}
}

// Of several who revoke what they see at the same time one does. Who sees less than there is revokes it all the same.
func TestOfManyWhoRevokeTheSameKeysAtOnceOneDoes(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	controllers := []*running{startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)}
	me := ca.Issue(pki.Ctl, "me")
	apply(t, controllers[0].client(me), sessionService("web", 1))
	newest := func() (epoch uint32) {
		fleettest.Await(t, "the next key is made", func() bool {
			known, err := controllers[0].client(me).ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
			fleettest.Require(t, err)
			if n := len(known.Keys); n > 0 {
				epoch = known.Keys[n-1].Epoch
			}
			return epoch > known.Current
		})
		return epoch
	}
	seen := newest()
	changes := make(chan int, 10)
	var all sync.WaitGroup
	for i := range cap(changes) {
		all.Go(func() {
			answer, err := controllers[i%2].client(me).RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{Force: true, Newest: seen})
			if err != nil {
				t.Error(err)
			}
			changes <- len(answer.GetChanges())
		})
	}
	all.Wait()
	close(changes)
	done := 0
	for n := range changes {
		done += n
	}
	if done != 1 {
		t.Errorf("%d have revoked", done)
	}
	now := newest()
	if answer, err := controllers[0].client(me).RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{Force: true, Newest: now - 1}); err != nil || len(answer.Changes) != 1 {
		t.Errorf("who has not seen the next key: %v, %v", answer, err)
	}
}

// Whatever a controller says to people and to load balancers, there is no key of tickets in it.
func TestNobodyIsShownKeysOfTickets(t *testing.T) {
	ca, s, dir, log := fleettest.NewAuthority(t), storetest.Open(t), t.TempDir(), &syncBuffer{}
	c := startController(t, ca, "c1", "127.0.0.1:0", s, func(o *Options) {
		settlesSoon(o)
		o.RunDir, o.Log = dir, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, sessionService("web", 1))
	a := joinTickets(t, ca.Issue(pki.Agent, "s1"), c)
	a.has(t, 1, 2)
	fleettest.Await(t, "epoch 2 may be used", func() bool { return useTickets(t, client, 2) == nil })
	a.has(t, 2, 3)
	useTickets(t, client, 77)
	lb := fleettest.Join(t, c.address, ca.Issue(pki.LB, "s1"))
	said := []string{fmt.Sprint(lb.State())}

	fleet, err := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(t, err)
	keys, err := client.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
	fleettest.Require(t, err)
	tickets, err := client.ListTicketKeys(t.Context(), &ballastv1.ListTicketKeysRequest{})
	fleettest.Require(t, err)
	changes, err := client.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	nodes, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	fleettest.Require(t, err)
	local := api.NewClient(api.SocketPath(dir, "c1"))
	for _, path := range []string{api.PathStatus, api.PathMetrics} {
		stream, err := local.Stream(t.Context(), path)
		fleettest.Require(t, err)
		text, err := io.ReadAll(stream)
		fleettest.Require(t, err)
		stream.Close()
		said = append(said, string(text))
	}
	_, err = client.RevokeTicketKeys(t.Context(), &ballastv1.RevokeTicketKeysRequest{})
	said = append(said, fmt.Sprint(fleet, keys, tickets, changes, nodes, err), log.String())

	secrets := secretsIn(t, s, a)
	if len(secrets) != 6 {
		t.Fatalf("%d secrets", len(secrets))
	}
	for _, secret := range secrets {
		numbers := strings.Trim(fmt.Sprint(secret[:6]), "[]")
		for _, form := range []string{hex.EncodeToString(secret[:6]), base64.StdEncoding.EncodeToString(secret[:6]), string(secret[:6]), numbers, strings.ReplaceAll(numbers, " ", ",")} {
			for _, text := range said {
				if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
					t.Errorf("a key of tickets is in %s", text)
				}
			}
		}
	}
}

// secretsIn are the keys of the fleet, and those that an agent has.
func secretsIn(t testing.TB, s store.Store, a *ticketAgent) (secrets [][]byte) {
	t.Helper()
	stored, _, err := s.Load(t.Context())
	fleettest.Require(t, err)
	now := documents.New()
	for _, d := range stored {
		fleettest.Require(t, now.Take(d, d.Revision))
	}
	for i := range now.Tickets.Keys {
		secrets = append(secrets, now.Tickets.Keys[i].Secret[:])
	}
	for _, k := range a.keys("web").Keys {
		secrets = append(secrets, k.Secret[:])
	}
	return secrets
}
