// Watching the weights that load balancers dispatch by.
package lab

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// servers is what a load balancer knows of the servers.
func (t *trial) servers(lb string) ([]*ballastv1.ServerStatus, error) {
	answer, err := t.client(lb).Fleet().ListServers(t.ctx, &ballastv1.ListServersRequest{})
	if err != nil {
		return nil, err
	}
	return answer.Servers, nil
}

// weights are those that a load balancer dispatches by now, by service and server.
func (t *trial) weights(lb string) (map[string]uint32, error) {
	servers, err := t.servers(lb)
	if err != nil {
		return nil, err
	}
	weights := map[string]uint32{}
	for _, server := range servers {
		weights[server.Service+"/"+server.Server.Name] = server.Weight
	}
	return weights, nil
}

// awaitNewWeights waits until a load balancer dispatches by other weights than before.
func (t *trial) awaitNewWeights(lb string, before map[string]uint32, within time.Duration) error {
	return awaitPromised(t.ctx, within, lb+" has new weights", func() error {
		now, err := t.weights(lb)
		if err == nil && maps.Equal(now, before) {
			err = fmt.Errorf("they are still %v", now)
		}
		return err
	})
}

// standstillChanges are as many as make sure that weights follow again: those on their way when a controller died are fewer.
const standstillChanges = 8

// longestStandstill watches the weights of a load balancer until they have changed a few times, and tells the longest time that
// they did not, in machine time.
func (t *trial) longestStandstill(lb string) (longest time.Duration, err error) {
	before, err := t.weights(lb)
	if err != nil {
		return 0, err
	}
	last := time.Now()
	for range standstillChanges {
		if err := t.awaitNewWeights(lb, before, resumeMax); err != nil {
			return 0, err
		}
		longest, last = max(longest, machine().since(last)), time.Now()
		if before, err = t.weights(lb); err != nil {
			return 0, err
		}
	}
	return longest, nil
}

// awaitWeights waits until the weights at load balancers change: load is followed.
func (t *trial) awaitWeights(within time.Duration, lbs ...string) error {
	for _, lb := range lbs {
		before, err := t.weights(lb)
		if err != nil {
			return err
		}
		if err := t.awaitNewWeights(lb, before, within); err != nil {
			return err
		}
	}
	return nil
}

// countWeightChanges looks at the weights of a load balancer several times a second until the returned function is called, which
// tells for each service how often they had changed from one look to the next.
func (t *trial) countWeightChanges(lb string) (stop func() map[string]int) {
	changes, done, ended := map[string]int{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(weightsInterval)
		defer ticker.Stop()
		var before map[string]uint32
		for {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
			now, err := t.weights(lb)
			if err != nil {
				continue // it is busy with a change
			}
			changed := map[string]bool{}
			for server, weight := range now {
				if old, known := before[server]; known && old != weight {
					service, _, _ := strings.Cut(server, "/")
					changed[service] = true
				}
			}
			for service := range changed {
				changes[service]++
			}
			before = now
		}
	}()
	return func() map[string]int {
		close(done)
		<-ended
		return changes
	}
}
