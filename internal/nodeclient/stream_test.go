package nodeclient

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
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
	s.streams["c2:6443"] = nil
	if problem := s.Problem(false); problem != "" {
		t.Errorf("another one is connected: %s", problem)
	}
}
