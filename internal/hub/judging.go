// The topic of whether the controller judges servers.
package hub

import "github.com/ballast-lb/ballast/internal/api/ballastv1"

// judging is the topic of whether this controller judges servers. Load balancers take for granted that it does.
type judging struct {
	subscribers
	able bool
}

func (j *judging) set(able bool) {
	if able == j.able {
		return
	}
	j.able = able
	for s := range j.subscribers {
		j.publish(s)
	}
}

func (j *judging) join(s *subscriber) {
	if s.isLB() {
		j.subscribers[s] = !j.able
	}
}

func (j *judging) next(s *subscriber) *frame {
	if !j.takeDue(s) {
		return nil
	}
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Judging{Judging: &ballastv1.Judging{Able: j.able}}})
}
