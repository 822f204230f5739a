// What a fleet must answer, as if one change were made after the other: models for porcupine.
package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"
)

// action is what a client asks for. Servers are numbered, services and VIPs too.
type action struct {
	kind string
	what int // server or service
	to   int // weight or VIP
}

// outcome is what it is told.
type outcome struct {
	code    connect.Code // of an error; 0: done
	changed bool         // not "nothing to do"
	server  serverState  // of a reading
	vips    vipState
}

// Codes that say that nothing was changed, and that it may have been.
const (
	done    connect.Code = 0
	notNow               = connect.CodeUnavailable
	unknown              = connect.CodeUnknown
)

type serverState struct {
	weight  int
	drained bool
}

// vipState tells which services there are, with which VIP, and which VIPs are the addresses of servers instead.
type vipState struct {
	of     [raceServices]int // VIP of a service, 0: there is none of that name
	server [raceVIPs + 1]bool
}

func (s *vipState) taken(vip, except int) bool {
	for service, has := range s.of {
		if has == vip && service != except {
			return true
		}
	}
	return s.server[vip]
}

// answers returns the state after an action and what has to be said of it.
func (s serverState) answers(a action) (next serverState, code connect.Code) {
	next = s
	switch a.kind {
	case "weigh":
		next.weight = a.to
	case "drain":
		next.drained = true
	case "undrain":
		next.drained = false
	}
	return next, done
}

func (s vipState) answers(a action) (next vipState, code connect.Code) {
	next = s
	exists := a.kind != "point" && a.kind != "unpoint" && s.of[a.what] != 0
	switch a.kind {
	case "add":
		if exists {
			return s, connect.CodeAlreadyExists
		}
		next.of[a.what] = a.to
	case "move":
		if !exists {
			return s, connect.CodeNotFound
		}
		next.of[a.what] = a.to
	case "remove":
		if !exists {
			return s, connect.CodeNotFound
		}
		next.of[a.what] = 0
		return next, done
	case "point":
		if s.taken(a.to, -1) { // or the name
			return s, connect.CodeInvalidArgument
		}
		next.server[a.to] = true
		return next, done
	case "unpoint":
		if !s.server[a.to] {
			return s, connect.CodeNotFound
		}
		next.server[a.to] = false
		return next, done
	}
	if s.taken(a.to, a.what) {
		return s, connect.CodeInvalidArgument
	}
	return next, done
}

// register makes a model of a state that begins as it was read.
func register[S comparable](began S, answers func(S, action) (S, connect.Code), read func(outcome) S) porcupine.Model {
	step := func(state, input, output any) []any {
		s, a, told := state.(S), input.(action), output.(outcome)
		if a.kind == "read" {
			if read(told) == s {
				return []any{s}
			}
			return nil
		}
		next, code := answers(s, a)
		switch {
		case told.code == notNow:
			return []any{s}
		case told.code == unknown && code != done:
			return []any{s}
		case told.code == unknown:
			return []any{s, next}
		case told.code != code, code == done && told.changed != (next != s):
			return nil
		}
		return []any{next}
	}
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{began} }, Step: step, Equal: func(a, b any) bool { return a.(S) == b.(S) },
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
	return model.ToModel()
}

// check fails the test where no order of the operations explains what was told.
func check(t *testing.T, name string, model porcupine.Model, operations []porcupine.Operation) {
	t.Helper()
	const patience = 2 * time.Minute
	switch porcupine.CheckOperationsTimeout(model, operations, patience) {
	case porcupine.Illegal:
		slices.SortFunc(operations, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		var list strings.Builder
		for _, o := range operations {
			fmt.Fprintf(&list, "%9.3f - %9.3f  client %d  %s\n", float64(o.Call)/1e9, float64(o.Return)/1e9, o.ClientId, model.DescribeOperation(o.Input, o.Output))
		}
		t.Errorf("%s: no order of these explains what was told:\n%s", name, list.String())
	case porcupine.Unknown:
		t.Logf("%s: %d operations were too many to check in %v", name, len(operations), patience)
	}
}

func TestTheRegisterCheckerFindsWhatIsNotLinearizable(t *testing.T) {
	at := func(call, back int64, a action, o outcome) porcupine.Operation {
		return porcupine.Operation{Input: a, Output: o, Call: call, Return: back}
	}
	legal := func(operations ...porcupine.Operation) bool {
		return porcupine.CheckOperations(register(vipState{}, vipState.answers, func(o outcome) vipState { return o.vips }), operations)
	}
	first, second := action{"add", 0, 1}, action{"add", 1, 1}
	ok := outcome{changed: true}
	for name, c := range map[string]struct {
		legal bool
		all   []porcupine.Operation
	}{
		"one of two is refused":            {true, []porcupine.Operation{at(0, 9, first, ok), at(0, 9, second, outcome{code: connect.CodeInvalidArgument})}},
		"two services have one VIP":        {false, []porcupine.Operation{at(0, 9, first, ok), at(0, 9, second, ok)}},
		"not found after it was added":     {false, []porcupine.Operation{at(0, 1, first, ok), at(2, 3, action{"remove", 0, 0}, outcome{code: connect.CodeNotFound})}},
		"nothing to do, but there was":     {false, []porcupine.Operation{at(0, 1, first, ok), at(2, 3, action{"move", 0, 2}, outcome{})}},
		"nothing was changed, but it was":  {false, []porcupine.Operation{at(0, 1, first, outcome{code: notNow}), at(2, 3, action{"remove", 0, 0}, ok)}},
		"not known, and it was done":       {true, []porcupine.Operation{at(0, 9, first, outcome{code: unknown}), at(2, 3, action{"remove", 0, 0}, ok)}},
		"not known, and it was not":        {true, []porcupine.Operation{at(0, 9, first, outcome{code: unknown}), at(2, 3, action{"remove", 0, 0}, outcome{code: connect.CodeNotFound})}},
		"a reading of what has never been": {false, []porcupine.Operation{at(0, 1, action{kind: "read"}, outcome{vips: vipState{of: [raceServices]int{2}}})}},
	} {
		if legal(c.all...) != c.legal {
			t.Errorf("%s: taken for legal: %v", name, !c.legal)
		}
	}
}
