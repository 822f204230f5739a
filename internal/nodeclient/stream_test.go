package nodeclient

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

func TestWhatAControllerAnswersIsKeptWhenNoAnswerFollows(t *testing.T) {
	s := New(Options{})
	refused := connect.NewError(connect.CodePermissionDenied, errors.New("the certificate of s1 was revoked"))
	down := connect.NewError(connect.CodeUnavailable, errors.New("connection refused"))
	for _, step := range []struct {
		why  error
		want string
	}{{down, "connection refused"}, {errors.New("no route to host"), "no route to host"}, {refused, "was revoked"}, {down, "was revoked"}} {
		s.miss("c1:6443", step.why)
		if problem := s.Problem(false); !strings.HasPrefix(problem, NoController+" (c1:6443: ") || !strings.Contains(problem, step.want) {
			t.Errorf("after %v: %s", step.why, problem)
		}
	}
	s.streams["c2:6443"] = nil
	if problem := s.Problem(false); problem != "" {
		t.Errorf("another one is connected: %s", problem)
	}
}
