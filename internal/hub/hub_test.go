package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// names lists the services of a state and what is gone.
func names(state *ballastv1.State) (services, gone []string) {
	for _, s := range state.Services {
		services = append(services, s.Service.Name)
	}
	return services, state.Gone
}

func expectState(t *testing.T, state *ballastv1.State, revision uint64, complete bool, services, gone string) {
	t.Helper()
	have, left := names(state)
	if state.Revision != revision || state.Complete != complete || strings.Join(have, " ") != services || strings.Join(left, " ") != gone {
		t.Fatalf("have revision %d, complete %v, services %v, gone %v", state.Revision, state.Complete, have, left)
	}
}

func TestANodeIsToldEverythingFirstAndThenWhatChanges(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	web, mail := fleettest.Service("web", 1, 2), fleettest.Service("mail", 3)
	hub.Topics.SetState(fleettest.View(1, mail, web))
	state := lb.State()
	expectState(t, state, 1, true, "mail web", "")
	if len(state.Services[1].Service.Servers) != 2 || len(state.Keys.Cookie) != 1 {
		t.Errorf("have %v", state)
	}
	web = fleettest.Service("web", 1, 2, 4)
	web.Down = []uint16{2}
	hub.Topics.SetState(fleettest.View(2, mail, web))
	state = lb.State()
	expectState(t, state, 2, false, "web", "")
	if !slices.Equal(state.Services[0].Down, []uint32{2}) || state.Keys != nil {
		t.Errorf("have %v", state)
	}
	hub.Topics.SetState(fleettest.View(3, web))
	expectState(t, lb.State(), 3, false, "", "mail")
	hub.Topics.SetState(fleettest.View(4, web)) // nothing to tell
	web.Cut = []uint16{2}
	hub.Topics.SetState(fleettest.View(5, web))
	state = lb.State()
	expectState(t, state, 5, false, "web", "")
	if got := state.Services[0].Service.Servers[1].State; got != "off" {
		t.Errorf("the server whose connections are cut is %s", got)
	}
}

func TestAgentsHearOnlyOfServicesThatTheyAreServersOf(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	web, mail, other := fleettest.Service("web", 1), fleettest.Service("mail", 2, 7), fleettest.Service("other", 3)
	other.Removed = fleettest.Service("", 7).Service.Servers
	hub.Topics.SetState(fleettest.View(1, mail, other, web))
	byName := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	byAddress := fleettest.Join(t, address, ca.Issue(pki.Agent, "host", "10.0.0.7", "192.0.2.1"))
	expectState(t, byName.State(), 1, true, "web", "")
	expectState(t, byAddress.State(), 1, true, "mail other", "")

	mail.Down, web.Past = []uint16{2}, [][]model.Share{{{ID: 1, Weight: 1}}} // of no interest to servers
	hub.Topics.SetState(fleettest.View(2, mail, other, web))
	mail, other = fleettest.Service("mail", 1), fleettest.Service("other", 3)
	hub.Topics.SetState(fleettest.View(3, mail, other, web))
	expectState(t, byName.State(), 3, false, "mail", "")
	expectState(t, byAddress.State(), 3, false, "", "mail other")
}

func TestNodesAreToldAgainWhatWasSomethingElseInBetween(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	web, mail := fleettest.Service("web", 1), fleettest.Service("mail", 2)
	hub.Topics.SetState(fleettest.View(1, mail, web))
	lb, agent := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, address, ca.Issue(pki.Agent, "s2"))
	expectState(t, lb.State(), 1, true, "mail web", "")
	expectState(t, agent.State(), 1, true, "mail", "")
	next := fleettest.View(4, mail, web) // another controller has told of web without its server at 2, and of shop at 3
	next.Skipped = []string{"shop", "web"}
	hub.Topics.SetState(next)
	expectState(t, lb.State(), 4, false, "web", "shop")
	expectState(t, agent.State(), 4, false, "", "shop web")
	hub.Topics.SetWeights("web", weights(8, 2, true, model.Share{ID: 1, Weight: 5}))
	if told := lb.Next().GetWeights(); told.GetTerm() != 8 {
		t.Errorf("told %v", told)
	}
	next = fleettest.View(9, mail, web)
	next.Whole = true
	hub.Topics.SetState(next)
	expectState(t, lb.State(), 9, true, "mail web", "")
	expectState(t, agent.State(), 9, true, "mail", "")
	hub.Topics.SetWeights("web", weights(7, 1, true, model.Share{ID: 1, Weight: 6})) // the store was restored from a copy
	if told := lb.Next().GetWeights(); told.GetTerm() != 7 {
		t.Errorf("told %v", told)
	}
}

// What it would tell was given up since: keys that were dropped, servers that are gone.
//
// Promise: A node keeps its state when the reachable controllers are cut off from etcd and know less.
func TestAControllerThatIsCutOffFromItsStoreServesNobodyWhoKnowsMore(t *testing.T) {
	newest, confirmed := uint64(7), errors.New("etcd has no leader")
	hub := testHub(t, func(o *Options) {
		o.Newest = func(context.Context) (uint64, error) { return newest, confirmed }
	})
	ca := fleettest.NewAuthority(t)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := ca.Issue(pki.LB, "lb1")
	as := func(revision uint64) *ballastv1.Hello {
		h := fleettest.Hello(lb)
		h.Revision = revision
		return h
	}
	welcome := func(what string, h *ballastv1.Hello) {
		t.Helper()
		c := fleettest.Converse(t, address, lb, h)
		if c.Next().GetWelcome() == nil {
			t.Fatalf("%s is not welcome", what)
		}
		c.Cancel()
	}
	welcome("who joins before the store was read", as(8))
	hub.Topics.SetState(fleettest.View(7))
	welcome("who knows as much", as(7))
	why := fleettest.Converse(t, address, lb, as(8)).Ends()
	if why.Code() != connect.CodeUnavailable || !strings.Contains(why.Message(), "knows revision 7 of the desired state, lb lb1 runs by 8: etcd has no leader") {
		t.Errorf("who knows more ended with %v", why)
	}
	newest, confirmed = 9, nil // the answer is there before the state
	if why := fleettest.Converse(t, address, lb, as(8)).Ends(); why.Code() != connect.CodeUnavailable {
		t.Errorf("before the newest state was read who knows more ended with %v", why)
	}
	newest = 7 // the store was restored from a copy
	welcome("who knows what is no more", as(8))
}

// Promise: A peer of another version is refused, naming both versions.
func TestOnlyNodesWithTheirOwnCertificateAndOurVersionJoin(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	impatient := testHub(t, func(o *Options) { o.Limits.HelloTimeout = 50 * time.Millisecond })
	server := ca.Issue(pki.Controller, "c1")
	address, _ := serveHub(t, hub, server)
	addressOfImpatient, _ := serveHub(t, impatient, server)
	lb := ca.Issue(pki.LB, "lb1")
	is := func(change func(*ballastv1.Hello)) *ballastv1.Hello {
		h := fleettest.Hello(lb)
		change(h)
		return h
	}
	for name, c := range map[string]struct {
		credentials *pki.Credentials
		hello       *ballastv1.Hello
		code        connect.Code
		why         []string
	}{
		"other version": {lb, is(func(h *ballastv1.Hello) { h.Protocol = 2 }), connect.CodeFailedPrecondition, []string{"protocol 2", "has 1", "9.9.9", "1.2.3"}},
		"other role":    {lb, is(func(h *ballastv1.Hello) { h.Role = "agent" }), connect.CodePermissionDenied, []string{"role lb, not agent"}},
		"other name":    {lb, is(func(h *ballastv1.Hello) { h.Name = "lb2" }), connect.CodePermissionDenied, []string{"lb lb1, not for lb2"}},
		"long words":    {lb, is(func(h *ballastv1.Hello) { h.Version = strings.Repeat("1", 1<<20) }), connect.CodeInvalidArgument, []string{"more than 256 bytes"}},
		"no node":       {ca.Issue(pki.Ctl, "me"), fleettest.Hello(lb), connect.CodePermissionDenied, []string{"role ctl"}},
		"no hello":      {lb, nil, connect.CodeDeadlineExceeded, []string{"no Hello"}},
	} {
		t.Run(name, func(t *testing.T) {
			at := address
			if c.hello == nil {
				at = addressOfImpatient
			}
			stream := fleettest.Converse(t, at, c.credentials, c.hello)
			if c.hello == nil {
				stream.Stream.Send(nil) // the headers
			}
			why := stream.Ends()
			if why.Code() != c.code {
				t.Errorf("ended with %v", why)
			}
			for _, part := range c.why {
				if !strings.Contains(why.Message(), part) {
					t.Errorf("the reason %q does not say %q", why.Message(), part)
				}
			}
		})
	}
	t.Run("other authority", func(t *testing.T) {
		stranger := fleettest.NewAuthority(t).Issue(pki.LB, "lb1")
		why := fleettest.Converse(t, address, stranger, fleettest.Hello(stranger)).Ends()
		if why.Code() != connect.CodeUnavailable {
			t.Errorf("ended with %v", why)
		}
	})
	if nodes := append(hub.Nodes.List(), impatient.Nodes.List()...); len(nodes) != 0 {
		t.Errorf("joined: %v", nodes)
	}
}

// Promise: Of two nodes with one name the newer stream counts, at most once a second.
func TestANewerStreamTakesThePlaceOfTheOlder(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := ca.Issue(pki.LB, "lb1")
	older := fleettest.Join(t, address, lb)
	newer := fleettest.Join(t, address, lb)
	if why := older.Ends(); why.Code() != connect.CodeAborted || !strings.Contains(why.Message(), "joined again") {
		t.Errorf("the older stream ended with %v", why)
	}
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	expectState(t, newer.State(), 1, true, "web", "")
	if nodes := hub.Nodes.List(); len(nodes) != 1 || nodes[0].Name != "lb1" || nodes[0].Version != "9.9.9" {
		t.Errorf("nodes: %v", nodes)
	}
}

// Promise: The stream of a peer that floods is cut with the reason.
func TestAFloodingPeerIsCutWithTheReason(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.Messages = 5 })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	good := fleettest.Join(t, address, ca.Issue(pki.LB, "lb2"))
	report := &ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: &ballastv1.TrafficReport{}}}
	for range 1000 {
		if lb.Send(report) != nil {
			break
		}
	}
	if why := lb.Ends(); why.Code() != connect.CodeResourceExhausted || !strings.Contains(why.Message(), "5 messages") {
		t.Errorf("ended with %v", why)
	}
	if count := counted(hub.metrics.refused.WithLabelValues("flooding")); count != 1 {
		t.Errorf("counted %v times", count)
	}
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	expectState(t, good.State(), 1, true, "web", "")
}

func TestANodeThatJoinsOverAndOverIsRefusedForAWhile(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.Joins = 0.001 })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := ca.Issue(pki.LB, "lb1")
	var why *connect.Error
	for range 20 {
		c := fleettest.Converse(t, address, lb, fleettest.Hello(lb))
		if message, err := c.Stream.Receive(); err != nil {
			errors.As(err, &why)
			break
		} else if message.GetWelcome() == nil {
			t.Fatalf("no welcome but %v", message)
		}
	}
	if why == nil || why.Code() != connect.CodeResourceExhausted || !strings.Contains(why.Message(), "another node of that name") {
		t.Errorf("refused with %v", why)
	}
	fleettest.Join(t, address, ca.Issue(pki.LB, "lb2"))
}

func TestAMessageThatIsTooLargeOrNotForTheRoleEndsTheStream(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.MessageBytes = 1000 })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	large := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	traffic := &ballastv1.TrafficReport{}
	for range 100 {
		traffic.Servers = append(traffic.Servers, &ballastv1.ServerTraffic{Service: "a service with a long name", Packets: 1 << 60})
	}
	large.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: traffic}})
	if why := large.Ends(); why.Code() != connect.CodeResourceExhausted {
		t.Errorf("ended with %v", why)
	}
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	agent.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: &ballastv1.HealthReport{}}})
	if why := agent.Ends(); why.Code() != connect.CodeInvalidArgument || !strings.Contains(why.Message(), "role lb, not agent") {
		t.Errorf("ended with %v", why)
	}
}

func TestOfANodesComplaintsOnlySoMuchIsKept(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	complaints := slices.Repeat([]string{strings.Repeat("é", 10000)}, 500)
	agent.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: &ballastv1.LoadReport{Unavailable: complaints}}})
	var kept []string
	fleettest.Await(t, "the report", func() bool { kept = hub.Nodes.List()[0].Problems; return len(kept) > 0 })
	if bytes := len(strings.Join(kept, "")); bytes > 1<<16 {
		t.Errorf("%d complaints of %d bytes are kept", len(kept), bytes)
	}
}

func weights(term, version uint64, complete bool, shares ...model.Share) *follow.Update {
	return &follow.Update{Term: term, Version: version, Complete: complete, Weights: shares}
}

// Promise: A peer that reads slowly or not at all takes bounded memory and delays nobody; it gets the newest of
// everything, or is cut.
// Also held by TestAPeerThatTakesNothingForLongIsCut.
func TestAPeerThatNeverReadsHoldsNobodyUpAndGetsTheNewestOfEverything(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.WriteTimeout = time.Hour }) // it reads in the end, however late that is
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	var services []engine.ServiceView
	for i := range 4 {
		services = append(services, fleettest.Service(fmt.Sprint("service", i), fleettest.ManyIDs(200)...))
	}
	hub.Topics.SetState(fleettest.View(1, services...))
	idle, reader := fleettest.Join(t, address, ca.Issue(pki.LB, "idle")), fleettest.Join(t, address, ca.Issue(pki.LB, "reader"))
	expectState(t, reader.State(), 1, true, "service0 service1 service2 service3", "")

	const updates = 10000
	last := map[string]map[uint32]uint32{}
	for i := range updates {
		name := services[i%4].Service.Name
		if i%8 < 4 {
			var all []model.Share
			last[name] = map[uint32]uint32{}
			for id := range uint32(200) {
				all, last[name][id+1] = append(all, model.Share{ID: uint16(id + 1), Weight: uint16(i)}), uint32(i)
			}
			hub.Topics.SetWeights(name, weights(1, uint64(i+1), true, all...))
		} else {
			last[name][7] = uint32(i)
			hub.Topics.SetWeights(name, weights(1, uint64(i+1), false, model.Share{ID: 7, Weight: uint16(i)}))
		}
	}
	services[0].Down = []uint16{1}
	hub.Topics.SetState(fleettest.View(2, services...))

	// Whoever reads has the state soon, and in the end the newest weights.
	for peer, c := range map[string]*fleettest.Conversation{"reader": reader, "idle": idle} {
		have, revision := map[string]*ballastv1.Weights{}, uint64(0)
		values := map[string]map[uint32]uint32{}
		for revision < 2 || !newest(have, updates) {
			message := c.Next()
			if s := message.GetState(); s != nil {
				revision = s.Revision
			}
			if w := message.GetWeights(); w != nil {
				have[w.Service] = w
				if w.Complete {
					values[w.Service] = map[uint32]uint32{}
				}
				for i, id := range w.Ids {
					values[w.Service][id] = w.Weights[i]
				}
			}
		}
		for name := range last {
			for id, want := range last[name] {
				if values[name][id] != want {
					t.Fatalf("%s: weight of %s %d is %d, want %d", peer, name, id, values[name][id], want)
				}
			}
		}
	}
	hub.Topics.mutex.Lock()
	defer hub.Topics.mutex.Unlock()
	for s, waiting := range hub.Topics.soft.of {
		if len(waiting.queue) > len(services) || cap(waiting.queue) > 64 {
			t.Errorf("%s: %d weights wait (room for %d)", s.identity.Name, len(waiting.queue), cap(waiting.queue))
		}
	}
	if counted(hub.metrics.coalesced.WithLabelValues("weights")) == 0 {
		t.Error("nothing was coalesced")
	}
}

// newest reports whether the last update of each of the four services has come.
func newest(have map[string]*ballastv1.Weights, updates uint64) bool {
	for _, w := range have {
		if w.Version <= updates-4 {
			return false
		}
	}
	return len(have) == 4
}

func TestAPeerThatTakesNothingForLongIsCut(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.WriteTimeout = 2 * time.Second })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	var all []model.Share
	for id := range uint16(4000) {
		all = append(all, model.Share{ID: id + 1, Weight: id})
	}
	version := uint64(0)
	fleettest.Await(t, "the peer is cut", func() bool { // until nothing more fits into its window
		version++ // one for each look: what is replaced before it is sent fills nothing
		hub.Topics.SetWeights("web", weights(1, version, true, all...))
		return len(hub.Nodes.List()) == 0
	})
	if count := counted(hub.metrics.refused.WithLabelValues("slow")); count != 1 {
		t.Errorf("counted %v times", count)
	}
}

func TestStateIsNeverDelayedByWeights(t *testing.T) {
	hub := testHub(t, nil)
	services := []engine.ServiceView{fleettest.Service("a", 1), fleettest.Service("b", 1)}
	hub.Topics.SetState(fleettest.View(1, services...))
	p := newPeer(pki.Identity{Role: pki.LB, Name: "lb1"}, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
	hub.enter(p)
	decode := func(f *frame) *ballastv1.ToNode {
		encoded, err := codec{}.Marshal(f)
		fleettest.Require(t, err)
		message := &ballastv1.ToNode{}
		fleettest.Require(t, proto.Unmarshal(encoded, message))
		return message
	}
	expectState(t, decode(hub.next(p)).GetState(), 1, true, "a b", "")
	hub.Topics.SetWeights("a", weights(1, 1, true, model.Share{ID: 1, Weight: 5}))
	hub.Topics.SetWeights("b", weights(1, 1, true, model.Share{ID: 1, Weight: 5}))
	hub.Topics.SetWeights("b", weights(1, 2, false, model.Share{ID: 1, Weight: 6}))
	services[1].Down = []uint16{1}
	hub.Topics.SetState(fleettest.View(2, services...))
	expectState(t, decode(hub.next(p)).GetState(), 2, false, "b", "")
	if got := decode(hub.next(p)).GetWeights(); got.Service != "a" {
		t.Errorf("first come the weights of %s", got.Service)
	}
	services[0].Down = []uint16{1}
	hub.Topics.SetState(fleettest.View(3, services...))
	expectState(t, decode(hub.next(p)).GetState(), 3, false, "a", "")
	if got := decode(hub.next(p)).GetWeights(); got.Service != "b" || got.Version != 2 || !got.Complete || got.Weights[0] != 6 {
		t.Errorf("the sum of the updates of b is %v", got)
	}
	if f := hub.next(p); f != nil {
		t.Errorf("and then %v", decode(f))
	}
}
