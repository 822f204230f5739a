// What an agent reports: to people and to controllers.
package agent

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tunnels"
	"github.com/ballast-lb/ballast/internal/nodeclient"
)

// reports changes nothing.
type reports struct{ *parts }

// health is what keeps this agent from its work.
func (p reports) health() (obstacles []string) {
	p.reconciler.Do(func(r *reconciler) { obstacles, _ = r.obstacles() })
	return obstacles
}

// serving is what the host serves, by what, and whether it can.
func (p reports) serving() (status api.AgentStatus) {
	status.Role, status.Version, status.ByControllers, status.Server = "agent", p.options.Version, p.options.Config == "", p.options.Server
	p.reconciler.Do(func(r *reconciler) { r.describe(&status) })
	status.Problems = slices.Concat(status.Problems, p.answers.Problems(), p.load.Problems(), p.gateways.Problems(), p.translated.Problems(time.Now()))
	status.Translated = p.translated.Status(time.Now())
	status.Gateways = p.gateways.Status(time.Now())
	return status
}

func (p reports) status() api.AgentStatus {
	status := p.withoutEchoes()
	keys, connections, err := p.keys.Echoes() // after it: who is ready has keys
	status.Epoch, status.Echoes = keys.Current, connections
	if err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	return status
}

// withoutEchoes is a status for which no sockets are walked.
func (p reports) withoutEchoes() api.AgentStatus {
	status := p.serving()
	if p.client != nil {
		status.Controllers = p.client.Connected()
		status.Problems = append(status.Problems, p.credentials.Warnings(time.Now())...)
	}
	if p.revocations != nil {
		status.Problems = append(status.Problems, p.revocations.Problems()...)
		status.Problems = append(status.Problems, p.renewal.Problems()...)
	}
	p.tunnels.Do(func(t *tunnels.Tunnels) {
		status.Tunnels = t.Status(time.Now())
		if problem := t.Problem(time.Now()); problem != "" {
			status.Problems = append(status.Problems, problem)
		}
	})
	if p.client != nil {
		problem := p.client.Problem(status.Revision > 0)
		if !status.ByControllers {
			problem = p.client.Unconnected(nodeclient.NoController + ": this host's load is not reported")
		}
		if problem != "" {
			status.Problems = append(status.Problems, problem)
		}
	}
	return status
}

// condition is what controllers are sent.
func (p reports) condition() *ballastv1.Condition {
	status := p.withoutEchoes()
	if err := p.keys.Problem(); err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	if status.Config.Error != "" {
		status.Problems = append(status.Problems, status.Config.Error)
	}
	condition := &ballastv1.Condition{Ready: status.Ready, Problems: status.Problems}
	p.reconciler.Do(func(r *reconciler) { condition.Losses, condition.Receiver = r.losses(), r.receives })
	return condition
}

func (p reports) counters() (api.Counters, error) {
	traffic, err := p.path.Counters()
	out := api.Counters{Counters: make(map[string]uint64, len(traffic))}
	for name, t := range traffic {
		out.Counters[name] = t.Packets
	}
	return out, err
}
