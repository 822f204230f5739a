// Nodes as topics see them.
package hub

import "github.com/ballast-lb/ballast/internal/pki"

// subscriber is what topics know of a node that is connected.
type subscriber struct {
	identity         pki.Identity
	takesRevocations bool
	wake             chan struct{} // with room for one: something waits for it
}

func (s *subscriber) isLB() bool { return s.identity.Role == pki.LB }

func (s *subscriber) isAgent() bool { return s.identity.Role == pki.Agent }

func (s *subscriber) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// subscribers are those of a topic whose value is one message; true: it has to be sent.
type subscribers map[*subscriber]bool

func (all subscribers) leave(s *subscriber) { delete(all, s) }

// publish has the value sent to a subscriber.
func (all subscribers) publish(s *subscriber) {
	all[s] = true
	s.wakeUp()
}

// takeDue reports whether the value has to be sent, which it is then.
func (all subscribers) takeDue(s *subscriber) (due bool) {
	if due = all[s]; due {
		all[s] = false
	}
	return due
}
