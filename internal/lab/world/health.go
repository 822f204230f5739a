// The health of servers, as it is and as load balancers know it.
package world

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants of health checks.
const (
	CheckInterval = 300 * time.Millisecond
	CheckTimeout  = 300 * time.Millisecond
	CheckRise     = 2
	CheckFall     = 2
	ResumeMax     = 10 * time.Second // until weights and health follow again, at most
)

// Checks is how what the lab has checked is checked.
func Checks(kind model.Check) model.Health {
	return model.Health{Check: kind, Interval: model.Duration(CheckInterval), Timeout: model.Duration(CheckTimeout), Rise: CheckRise, Fall: CheckFall}
}

// Sicken makes the health checks of a server fail, or succeed again, and waits until load balancers were told.
func (t *Trial) Sicken(i int, sick bool, lbs ...string) {
	path := filepath.Join(t.NodeDir(ServerName(i)), PathHealth)
	if sick {
		script.Checkf(os.Remove(path), "make server %d unhealthy", i)
	} else {
		script.Checkf(os.WriteFile(path, []byte("healthy\n"), 0o644), "make server %d healthy", i)
	}
	t.AwaitHealth(i, sick, lbs...)
}

// AwaitHealth waits until load balancers were told that a server is unhealthy, or that it is not.
func (t *Trial) AwaitHealth(i int, sick bool, lbs ...string) {
	for _, lb := range lbs {
		AwaitPromised(t.Context, ResumeMax, fmt.Sprintf("%s was told that server %d is unhealthy: %t", lb, i, sick), func() error {
			servers, err := t.Servers(lb)
			if err != nil {
				return err
			}
			for _, server := range servers {
				if server.Server.Name == ServerName(i) && (server.Health == "unhealthy") != sick {
					return fmt.Errorf("for it the server is %s", server.Health)
				}
			}
			return nil
		})
	}
}

// HealthOf is what a load balancer thinks of a server.
func (t *Trial) HealthOf(lb string, i int) (state, detail string, err error) {
	servers, err := t.Servers(lb)
	at := slices.IndexFunc(servers, func(s *ballastv1.ServerStatus) bool { return s.Server.Name == ServerName(i) })
	if err == nil && at < 0 {
		err = fmt.Errorf("%s has no server %d", lb, i)
	}
	if err != nil {
		return "", "", err
	}
	return servers[at].Health, servers[at].HealthDetail, nil
}

// Dispatched is how many connections lb1 and lb2 have given to a server.
func (t *Trial) Dispatched(i int) (counts []uint64, err error) {
	for _, lb := range []string{LBName(1), LBName(2)} {
		var services []api.ServiceStatus
		if err := t.Client(lb).Get(t.Context, api.PathServices, &services); err != nil {
			return nil, err
		}
		for _, server := range services[0].Servers {
			if server.Name == ServerName(i) {
				counts = append(counts, server.Connections)
			}
		}
	}
	return counts, nil
}

// Estimated is how many connections of a service load balancers take to be open, all together.
func (t *Trial) Estimated(service string, lbs ...string) (open int, err error) {
	for _, lb := range lbs {
		servers, err := t.Servers(lb)
		if err != nil {
			return 0, err
		}
		for _, server := range servers {
			if server.Service == service {
				open += int(server.GetConnections())
			}
		}
	}
	return open, nil
}

// EstimatesNothing says which server a load balancer still takes to have open connections; nil: none.
func (t *Trial) EstimatesNothing(lb string) error {
	servers, err := t.Servers(lb)
	for _, server := range servers {
		if server.GetConnections() != 0 {
			return fmt.Errorf("service %s: server %s has %d", server.Service, server.Server.Name, server.GetConnections())
		}
	}
	return err
}
