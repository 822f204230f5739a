// The topic of revoked certificates.
package hub

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// revocationsMax bounds the revocations of one message.
const revocationsMax = 1000

// revocations is the topic of revoked certificates.
type revocations struct {
	list []*ballastv1.Revocation
	due  map[*subscriber][]*ballastv1.Revocation // that it has to be sent
}

func (r *revocations) set(list, added []*ballastv1.Revocation) {
	r.list = list
	for s, due := range r.due {
		if due = slices.Concat(due, added); len(due) > len(list) {
			due = list
		}
		r.due[s] = due
		s.wakeUp()
	}
}

func (r *revocations) join(s *subscriber) { r.due[s] = r.list }

func (r *revocations) leave(s *subscriber) { delete(r.due, s) }

func (r *revocations) next(s *subscriber) *frame {
	due := r.due[s]
	if len(due) == 0 || !s.takesRevocations {
		return nil
	}
	list := due[:min(len(due), revocationsMax)]
	r.due[s] = due[len(list):]
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Revocations{Revocations: &ballastv1.Revocations{Revocations: list}}})
}

// problem is that a node does not take revocations; empty: it does, or there are none.
func (r *revocations) problem(s *subscriber) string {
	if len(r.list) == 0 || s.takesRevocations {
		return ""
	}
	return "it accepts revoked certificates of controllers: upgrade it"
}
