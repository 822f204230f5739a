// Whom a node follows: which states of its controllers it takes.
package nodeclient

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// NoController is a problem of a node that follows controllers; they themselves know.
const NoController = "no controller is connected"

// Client keeps a node at the newest state that its controllers have. It is safe for concurrent use.
type Client struct {
	*Streams
	log *slog.Logger

	mutex    sync.Mutex // held while a state is carried out
	follower follow.Follower
}

// NewClient returns a client that begins with Run. It adds the node's revision to Hello, and OnState should call Follow.
func NewClient(o Options) *Client {
	c := &Client{log: o.Log}
	hello, left := o.Hello, o.OnLeft
	o.Hello = func() *ballastv1.Hello {
		greeting := hello()
		c.mutex.Lock()
		defer c.mutex.Unlock()
		greeting.Revision = c.follower.Revision
		return greeting
	}
	o.OnLeft = func(controller string) {
		c.mutex.Lock()
		c.follower.Forget(controller)
		c.mutex.Unlock()
		if left != nil {
			left(controller)
		}
	}
	c.Streams = New(o)
	return c
}

// Resume goes on with a revision that the node had in an earlier process.
func (c *Client) Resume(revision uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.follower.Revision = revision
}

// ErrKnowsNothing: a controller whose store has no service at all is not believed.
var ErrKnowsNothing = errors.New("it knows no service")

// KnowsNothing reports whether a state says that there is no service.
func KnowsNothing(state *ballastv1.State) bool { return state.Complete && len(state.Services) == 0 }

// Follow has a controller's state carried out, unless the node has a newer one. One that cannot be carried out is refused, and asked for
// again later. One without services is not believed if it is older than the node's, or carryOut returns ErrKnowsNothing.
func (c *Client) Follow(controller string, state *ballastv1.State, carryOut func() error) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	newer, err := c.follower.Offer(controller, state.Revision, state.Complete), error(nil)
	switch {
	case KnowsNothing(state) && (!newer || state.Revision < c.follower.Revision):
		err = ErrKnowsNothing
	case !newer:
		return nil
	default:
		err = carryOut()
	}
	switch {
	case err == nil:
		c.follower.Take(state.Revision)
	case errors.Is(err, ErrKnowsNothing):
		c.follower.Disbelieve(controller)
	default:
		c.follower.Refuse(time.Now(), state.Revision)
		c.log.Error("state of controller refused, the old state is kept", "controller", controller, "revision", state.Revision, "error", err)
	}
	return err
}

// ResyncIfNeeded asks controllers for everything where changes alone do not lead to their state: one was refused, or older ones have to be
// let in because no controller knows the newer one any more. Before the latter it calls yield.
func (c *Client) ResyncIfNeeded(now time.Time, yield func()) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch {
	case c.follower.AheadOfAllControllers(now):
		c.log.Warn("no controller knows the revision that runs here: asking those in reach whether theirs is the newest that their store has", "revision", c.follower.Revision)
		c.follower.Yield()
		yield()
	case c.follower.NeedsFullState(now):
		c.log.Info("controllers are asked for the whole state: one was refused", "revision", c.follower.Revision)
	default:
		return
	}
	c.Rejoin()
}
