// The topic of which servers a load balancer checks.
package hub

import (
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// checks is the topic of the services whose servers each load balancer checks.
type checks struct {
	subscribers
	services map[string][]string // by load balancer
}

func (c *checks) set(services map[string][]string) {
	before := c.services
	c.services = maps.Clone(services)
	for s := range c.subscribers {
		if !slices.Equal(before[s.identity.Name], services[s.identity.Name]) {
			c.publish(s)
		}
	}
}

func (c *checks) join(s *subscriber) {
	if s.isLB() {
		c.subscribers[s] = len(c.services[s.identity.Name]) > 0
	}
}

func (c *checks) next(s *subscriber) *frame {
	if !c.takeDue(s) {
		return nil
	}
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Checks{Checks: &ballastv1.Checks{Services: c.services[s.identity.Name]}}})
}
