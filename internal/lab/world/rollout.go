// Making the fleet what it is to be, on every node.
package world

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Rollout carries out the desired state of a pool.
type Rollout struct {
	*Daemons
	pool     *Pool
	operator *Operator
	clocks   bool // a change is done when load balancers know the servers' clocks
}

// Apply writes the fleet to every node, starts the daemons that do not run yet, agents before load
// balancers, those of the second tier before the first, and waits until all run by it.
func (r *Rollout) Apply() {
	content := script.Must(r.pool.Encode())
	if r.network.Controllers != 0 {
		r.applyByControl(content)
		return
	}
	for _, group := range []struct {
		role    string
		daemons map[string]*Daemon
	}{{"agent", r.Agents}, {"lb", r.Second}, {"lb", r.LBs}} {
		for node, running := range group.daemons {
			if running != nil && running.down {
				continue
			}
			r.writeConfig(node, content)
			if running == nil {
				group.daemons[node] = r.Start(group.role, node)
			}
		}
		for _, running := range group.daemons {
			if !running.down {
				r.awaitConfig(running, content)
			}
		}
	}
	if r.clocks {
		r.awaitTakingPart()
	}
}

// writeConfig replaces a node's configuration by rename, so that no reader sees half of it.
func (r *Rollout) writeConfig(node string, content []byte) {
	path := r.configPath(node)
	script.Checkf(os.WriteFile(path+".new", content, 0o644), "write configuration of %s", node)
	script.Check(os.Rename(path+".new", path))
}

// awaitConfig waits until a daemon is ready and runs by the given configuration.
func (r *Rollout) awaitConfig(d *Daemon, content []byte) {
	sum := sha256.Sum256(content)
	want := hex.EncodeToString(sum[:])
	d.Await(d.String()+" of "+d.Node+" runs by the new configuration", func() error {
		status, err := r.Client(d.Node).Status(r.lab.Context)
		switch {
		case err != nil:
			return err
		case len(asked(status.Config.Error)) > 0: // it is what the trial means
			path := strings.Replace(api.PathConfigAction, "{action}", "reload", 1)
			return r.Client(d.Node).Do(r.lab.Context, http.MethodPost, path+"?"+asked(status.Config.Error).Encode(), nil, &api.Changed{})
		case status.Config.Error != "":
			return errors.New("it refused the file: " + status.Config.Error)
		case status.Config.SHA256 != want:
			return fmt.Errorf("it still runs by %.8s instead of %.8s", status.Config.SHA256, want)
		case !status.Ready:
			return errors.New("it is not ready")
		}
		d.Ready.Store(true)
		return nil
	})
}

// asked are the options by which a daemon takes the file that it has refused.
func asked(refusal string) url.Values {
	yes := url.Values{}
	for _, option := range []string{api.AllowRemove, api.Force} {
		if strings.Contains(refusal, "--"+option) {
			yes.Set(option, "true")
		}
	}
	return yes
}

// awaitTakingPart waits until every load balancer has found that the servers' clocks allow cookies. Connections that
// come earlier are served without, by the fallback.
func (r *Rollout) awaitTakingPart() {
	for node, running := range r.LBs {
		if running.down {
			continue
		}
		await.Until(r.lab.Context, await.Deadline, "the servers take part at "+node, func() error {
			services, err := r.services(node)
			if err != nil {
				return err
			}
			for _, server := range services[0].Servers {
				if !server.TakesPart {
					return errors.New(server.Name + " does not")
				}
			}
			return nil
		})
	}
}

func (r *Rollout) services(node string) (services []api.ServiceStatus, err error) {
	err = r.Client(node).Get(r.lab.Context, api.PathServices, &services)
	return services, err
}

// applyByControl has the operator apply the fleet, starts the daemons that do not run yet, and waits until
// all that can know run by it.
func (r *Rollout) applyByControl(content []byte) {
	path := r.configPath(operatorNode)
	script.Checkf(os.WriteFile(path, content, 0o644), "write the fleet")
	script.Must(r.operator.Ctl("apply", "--yes", "--allow-remove", "-f", path))
	for role, daemons := range map[string]map[string]*Daemon{"agent": r.Agents, "lb": r.LBs} {
		for node, running := range daemons {
			if running == nil {
				daemons[node] = r.Start(role, node)
			}
		}
	}
	for _, running := range r.Agents {
		r.awaitReady(running)
	}
	for node := range r.LBs {
		r.AwaitFleet(node)
	}
}

func (r *Rollout) awaitReady(d *Daemon) {
	d.Await(d.String()+" is ready", func() error {
		status, err := r.Client(d.Node).Status(r.lab.Context)
		if err == nil && !status.Ready {
			err = fmt.Errorf("%s is not", d)
		}
		d.Ready.Store(err == nil)
		return err
	})
}

// AwaitFleet waits until a load balancer has exactly the servers that the fleet has, in their states, and dispatches as
// it says. One that is cut off cannot.
func (r *Rollout) AwaitFleet(node string) {
	running := r.LBs[node]
	if running.down || running.Cut {
		return
	}
	r.awaitReady(running)
	await.Until(r.lab.Context, await.Deadline, node+" has the servers of the fleet", func() error { return r.Differs(node) })
}

// Differs is how the servers of a load balancer and their dispatch differ from those of the fleet.
func (r *Rollout) Differs(node string) error {
	services, err := r.services(node)
	if err != nil {
		return err
	}
	have, want := map[string]string{}, map[string]string{}
	for _, service := range services {
		have[service.Name] = service.Dispatch.String()
		for _, server := range service.Servers {
			if !server.Removed {
				have[service.Name+"/"+server.Name] = server.State.String()
			}
		}
	}
	for _, service := range r.pool.Services {
		want[service.Name] = service.Dispatch.String()
		for _, server := range service.Servers {
			want[service.Name+"/"+server.Name] = server.State.String()
		}
	}
	if !maps.Equal(have, want) {
		return fmt.Errorf("%s has the servers %v instead of %v", node, have, want)
	}
	return nil
}
