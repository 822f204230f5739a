package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/health"
)

func TestWhatAControllerAnswersIsKeptWhenNoAnswerFollows(t *testing.T) {
	s := New(Options{})
	refused := connect.NewWireError(connect.CodePermissionDenied, errors.New("the certificate of s1 was revoked"))
	behind := connect.NewWireError(connect.CodeUnavailable, errors.New("this controller is behind"))
	down := connect.NewError(connect.CodeUnavailable, errors.New("connection refused"))
	for _, step := range []struct {
		why    error
		want   string
		answer string // empty: none
	}{{down, "connection refused", ""}, {errors.New("no route to host"), "no route to host", ""}, {refused, "the certificate of s1 was revoked", ""},
		{down, "connection refused", "the certificate of s1 was revoked"}, {errors.New("timeout"), "timeout", "the certificate of s1 was revoked"},
		{behind, "this controller is behind", ""}, {down, "connection refused", "this controller is behind"}} {
		s.miss("c1:6443", step.why)
		problem := s.Problem(false)
		last, answer, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(problem, NoController+" (c1:6443: "), ")"), "; at ")
		if last != step.want || (answer == "") != (step.answer == "") || !strings.HasSuffix(answer, step.answer) {
			t.Errorf("after %v: %s", step.why, problem)
		}
	}
	s.streams["c2:6443"] = newOutbox(nil)
	if problem := s.Problem(false); problem != "" {
		t.Errorf("another one is connected: %s", problem)
	}
}

// Promise: A load balancer counts on no controller that says nothing for 3 s: it is named in PROBLEMS, and does not count as one that judges.
func TestAControllerThatSaysNothingDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.streams["c1:6443"], s.streams["c2:6443"] = newOutbox(nil), newOutbox(nil)
		expect := func(what string, judged bool, problem string) {
			t.Helper()
			if have := s.Judged(time.Now()); have != judged {
				t.Errorf("%s: judged is %t", what, have)
			}
			if have := s.Problem(true); have != problem {
				t.Errorf("%s: %q, want %q", what, have, problem)
			}
			if since := s.Silence(time.Now()); since.IsZero() != (problem == "") {
				t.Errorf("%s: silent since %v", what, since)
			}
		}
		alive := &ballastv1.ToNode{Message: &ballastv1.ToNode_Alive{Alive: &ballastv1.Alive{}}}
		time.Sleep(time.Hour)
		expect("controllers of an older version say nothing", true, "")
		s.hear("c1:6443", alive)
		s.hear("c2:6443", alive)
		time.Sleep(health.Silent - 1)
		expect("just now", true, "")
		time.Sleep(time.Nanosecond)
		expect("both are silent", false, NoController+": the last state goes on (c1:6443: no word for 3s; c2:6443: no word for 3s)")
		s.hear("c1:6443", &ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{}})
		expect("whatever it says, it is there", true, "")
		s.unable["c1:6443"] = true
		if s.Judged(time.Now()) {
			t.Error("one is silent, and the other judges nobody")
		}
	})
}

func TestANodeSaysEverySecondThatItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out, sent, began := newOutbox(cancel), []string{}, time.Now()
		go out.drain(ctx, func(message *ballastv1.FromNode) error {
			sent = append(sent, fmt.Sprint(time.Since(began), " ", message.GetAlive() != nil))
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		out.put(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{}})
		time.Sleep(2 * time.Second)
		cancel()
		synctest.Wait()
		if want := []string{"0s true", "500ms false", "1s true", "2s true"}; !slices.Equal(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
	})
}
