package hub

import (
	"context"
	"math"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// question waits for the next one that a node is sent.
func question(c *fleettest.Conversation) *ballastv1.Question {
	for {
		if q := c.Next().GetQuestion(); q != nil {
			return q
		}
	}
}

func explained(number uint64, e *ballastv1.Explanation) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Explained{Explained: &ballastv1.Explained{Number: number, Explanation: e}}}
}

// asks begins a question and returns where its answers come.
func asks(hub *Hub, ctx context.Context) <-chan []*ballastv1.Explanation {
	answers := make(chan []*ballastv1.Explanation, 1)
	go func() {
		list, _ := hub.Nodes.Explain(ctx, &ballastv1.MadeUpPacket{Client: "203.0.113.7:1", Vip: "198.51.100.10:80"})
		answers <- list
	}()
	return answers
}

func TestEveryLoadBalancerIsAskedOnceAndSpeaksForItself(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	lb1, lb2, agent := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, address, ca.Issue(pki.LB, "lb2")), fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	lb1.State()
	lb2.State()
	answers := asks(hub, t.Context())
	first, second := question(lb1), question(lb2)
	if first.Number != second.Number || first.Packet.GetVip() != "198.51.100.10:80" {
		t.Fatalf("asked %v and %v", first, second)
	}
	for _, late := range []uint64{first.Number + 1, 0} { // of another question, or none
		fleettest.Require(t, lb1.Send(explained(late, &ballastv1.Explanation{Verdict: "late"})))
	}
	fleettest.Require(t, lb1.Send(explained(first.Number, nil))) // it says nothing
	fleettest.Require(t, lb1.Send(explained(first.Number, &ballastv1.Explanation{Node: "lb2", Verdict: "forwarded_new\x1b[2J", Headers: make([]string, 10_000)})))
	fleettest.Require(t, lb1.Send(explained(first.Number, &ballastv1.Explanation{Verdict: "again"})))
	fleettest.Require(t, lb2.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Hello{Hello: &ballastv1.Hello{}}})) // its stream ends without an answer
	list := <-answers
	if len(list) != 2 {
		t.Fatalf("answers are %v", list)
	}
	of := map[string]*ballastv1.Explanation{list[0].Node: list[0], list[1].Node: list[1]}
	if e := of["lb1"]; e.GetVerdict() != "forwarded_new [2J" || len(e.GetHeaders()) > answerList {
		t.Errorf("lb1 said %v", e)
	}
	if e := of["lb2"]; !strings.Contains(e.GetError(), "ended before it answered") {
		t.Errorf("lb2 said %v", e)
	}
	fleettest.Require(t, agent.Send(explained(first.Number, &ballastv1.Explanation{})))
	if why := agent.Ends(); !strings.Contains(why.Message(), "is sent by nodes of role lb") {
		t.Errorf("an agent that answers ended with %v", why)
	}
}

func TestWhoDoesNotAnswerIsNamed(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	if list, err := hub.Nodes.Explain(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("without load balancers: %v, %v", list, err)
	}
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	lb.State()
	ctx, cancel := context.WithCancel(t.Context())
	answers := asks(hub, ctx)
	question(lb)
	cancel() // as the time of the question does
	if list := <-answers; len(list) != 1 || list[0].Node != "lb1" || !strings.Contains(list[0].Error, "does not answer within") {
		t.Errorf("answers are %v", list)
	}
	hub.Topics.mutex.Lock()
	left := len(hub.Topics.questions.open)
	hub.Topics.mutex.Unlock()
	if left != 0 {
		t.Errorf("%d questions are kept", left)
	}
}

// A question that nobody waits for any more is not sent to a load balancer whose stream is slow.
func TestQuestionsThatAreGivenUpAreForgotten(t *testing.T) {
	q := newQuestions()
	lb, gone := &subscriber{identity: pki.Identity{Role: pki.LB, Name: "lb1"}}, &subscriber{identity: pki.Identity{Role: pki.LB, Name: "lb2"}}
	for _, s := range []*subscriber{lb, gone} {
		s.wake = make(chan struct{}, 1)
		q.join(s)
	}
	first, second := &ballastv1.Question{}, &ballastv1.Question{}
	q.ask(first)
	q.ask(second)
	q.leave(gone)
	q.give(first.Number)
	if waiting := q.of[lb]; len(waiting) != 1 || waiting[0].Number != second.Number || len(q.of) != 1 {
		t.Errorf("waiting are %v", q.of)
	}
}

func TestQuestionsAreBounded(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	lb.State()
	for range questionsMost {
		asks(hub, t.Context())
		question(lb)
	}
	if _, err := hub.Nodes.Explain(t.Context(), nil); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}

// Promise: A load balancer that is asked for a sample speaks for itself, once; what it says that cannot be is not believed, and one that knows no samples
// is named with what it says.
func TestSamplesAreOfWhoWasAskedAndOfNumbersThatCanBe(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	lb1, lb2 := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, address, ca.Issue(pki.LB, "lb2"))
	lb1.State()
	lb2.State()
	answers := make(chan []*ballastv1.Explained, 1)
	go func() {
		list, _ := hub.Nodes.Sample(t.Context())
		answers <- list
	}()
	first, second := question(lb1), question(lb2)
	if !first.Sample || first.Packet != nil {
		t.Fatalf("asked %v", first)
	}
	sampled := func(number uint64, s *ballastv1.Sample) *ballastv1.FromNode {
		return &ballastv1.FromNode{Message: &ballastv1.FromNode_Explained{Explained: &ballastv1.Explained{Number: number, Sample: s}}}
	}
	fleettest.Require(t, lb1.Send(sampled(first.Number+1, &ballastv1.Sample{Packets: 1}))) // of another question
	shares := make([]*ballastv1.SampleShare, 10_000)
	for i := range shares {
		shares[i] = &ballastv1.SampleShare{Name: "\x1b[2J", Share: math.NaN(), Error: -1}
	}
	fleettest.Require(t, lb1.Send(sampled(first.Number, &ballastv1.Sample{Packets: 2, Seconds: math.Inf(1), Clients: shares})))
	fleettest.Require(t, lb1.Send(sampled(first.Number, &ballastv1.Sample{Packets: 3}))) // again
	fleettest.Require(t, lb2.Send(explained(second.Number, &ballastv1.Explanation{Node: "lb1", Error: "give ADDRESS:PORT"})))
	of := map[string]*ballastv1.Explained{}
	for _, a := range <-answers {
		of[a.Explanation.Node] = a
	}
	if s := of["lb1"].GetSample(); s.GetPackets() != 2 || s.Seconds != 0 || len(s.Clients) != answerList || s.Clients[0].Share != 0 || s.Clients[0].Error != 0 || s.Clients[0].Name != " [2J" {
		t.Errorf("lb1 said %v", of["lb1"])
	}
	if a := of["lb2"]; a.GetSample() != nil || a.GetExplanation().GetError() != "give ADDRESS:PORT" {
		t.Errorf("lb2 said %v", a)
	}
}
