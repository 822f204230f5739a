package script

import (
	"errors"
	"testing"
)

func TestAScriptEndsAtItsFirstErrorAndItsDeferredCallsRun(t *testing.T) {
	first, cleaned := errors.New("first"), false
	err := Try(func() {
		defer func() { cleaned = true }()
		if Must(7, nil) != 7 {
			t.Error("Must lost the value")
		}
		Checkf(nil, "nothing")
		Checkf(Try(func() { Check(first) }), "add server %d", 4)
		t.Error("went on after an error")
	})
	if !errors.Is(err, first) || err.Error() != "add server 4: first" || !cleaned {
		t.Errorf("ended with %v, deferred calls ran: %t", err, cleaned)
	}
	if err := Try(func() {}); err != nil {
		t.Errorf("without an error: %v", err)
	}
}

func TestMistakesOfTheProgramAreNoErrorsOfAScript(t *testing.T) {
	defer func() {
		if recover() != "a mistake" {
			t.Error("the panic was taken for an error")
		}
	}()
	_ = Try(func() { panic("a mistake") })
}
