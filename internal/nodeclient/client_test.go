package nodeclient

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// taken reports whether the node is asked to carry a state out, which ends with err.
func taken(c *Client, state *ballastv1.State, err error) (asked bool) {
	c.Follow("c1", state, func() error {
		asked = true
		return err
	})
	return asked
}

func TestAnEmptiedStoreEndsNoFleet(t *testing.T) {
	c := NewClient(Options{Log: slog.New(slog.DiscardHandler)})
	c.Resume(100)
	filled := func(revision uint64, complete bool) *ballastv1.State {
		return &ballastv1.State{Revision: revision, Complete: complete, Services: []*ballastv1.ServiceState{{Service: &ballastv1.Service{Name: "web"}}}}
	}
	now, yields := time.Unix(1000, 0), 0
	wait := func() {
		c.ResyncIfNeeded(now, func() { yields++ })
		now = now.Add(time.Hour)
		c.ResyncIfNeeded(now, func() { yields++ })
	}
	if taken(c, &ballastv1.State{Revision: 2, Complete: true}, nil) {
		t.Fatal("takes the state of a store with nothing in it")
	}
	if wait(); yields != 0 {
		t.Fatal("gives up its state for that of a store with nothing in it")
	}
	if taken(c, filled(3, false), nil) {
		t.Error("takes an old state at once")
	}
	if wait(); yields != 1 || !taken(c, filled(4, true), nil) {
		t.Error("does not take the state of a store that was filled again")
	}
}

// A node that waits for its first state believes no controller that has none.
func TestAStateThatTheNodeDoesNotBelieveIsNoneThatItRefuses(t *testing.T) {
	c := NewClient(Options{Log: slog.New(slog.DiscardHandler)})
	empty := &ballastv1.State{Revision: 7, Complete: true}
	if err := c.Follow("c1", empty, func() error { return ErrKnowsNothing }); !errors.Is(err, ErrKnowsNothing) {
		t.Fatal(err)
	}
	if change := (&ballastv1.State{Revision: 8}); !taken(c, change, errors.New("it does not fit")) {
		t.Error("it takes nothing but complete states, as if it had refused one")
	} else if taken(c, &ballastv1.State{Revision: 9}, nil) {
		t.Error("it has refused a state, and takes another one that is not complete")
	} else if !taken(c, &ballastv1.State{Revision: 9, Complete: true, Services: []*ballastv1.ServiceState{{}}}, nil) {
		t.Error("it does not take the complete state")
	}
}
