// Watching the weights that load balancers dispatch by.
package world

import (
	"fmt"
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Servers is what a load balancer knows of the servers.
func (t *Trial) Servers(lb string) ([]*ballastv1.ServerStatus, error) {
	answer, err := t.Client(lb).Fleet().ListServers(t.Context, &ballastv1.ListServersRequest{})
	if err != nil {
		return nil, err
	}
	return answer.Servers, nil
}

// Weights are those that a load balancer dispatches by now, by service and server.
func (t *Trial) Weights(lb string) (map[string]uint32, error) {
	servers, err := t.Servers(lb)
	if err != nil {
		return nil, err
	}
	weights := map[string]uint32{}
	for _, server := range servers {
		weights[server.Service+"/"+server.Server.Name] = server.Weight
	}
	return weights, nil
}

// AwaitNewWeights waits until a load balancer dispatches by other weights than before.
func (t *Trial) AwaitNewWeights(lb string, before map[string]uint32, within time.Duration) {
	AwaitPromised(t.Context, within, lb+" has new weights", func() error {
		now, err := t.Weights(lb)
		if err == nil && maps.Equal(now, before) {
			err = fmt.Errorf("they are still %v", now)
		}
		return err
	})
}

// AwaitWeights waits until the weights at load balancers change: load is followed.
func (t *Trial) AwaitWeights(within time.Duration, lbs ...string) {
	for _, lb := range lbs {
		before := script.Must(t.Weights(lb))
		t.AwaitNewWeights(lb, before, within)
	}
}
