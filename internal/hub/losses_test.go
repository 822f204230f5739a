package hub

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

// lossesHeard keeps what agents have found.
type lossesHeard struct {
	ignored
	agents []string
	losses map[string]health.Loss
}

func (l *lossesHeard) Losses(agent pki.Identity, losses map[string]health.Loss) {
	l.agents, l.losses = append(l.agents, agent.Name), losses
}

func TestOnlyAgentsSayWhatTheirServersLose(t *testing.T) {
	heard := &lossesHeard{}
	hub := testHub(t, func(o *Options) { o.Reports = heard })
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	join := func(role pki.Role, name, address string) *peer {
		p := newPeer(pki.Identity{Role: role, Name: name}, &ballastv1.Hello{Addresses: []string{address}},
			&call{request: &http.Request{RemoteAddr: net.JoinHostPort(address, "40000")}}, &hub.options.Limits)
		hub.enter(p)
		return p
	}
	tell := func(p *peer, losses ...*ballastv1.Loss) {
		t.Helper()
		condition := &ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true, Losses: losses}}}
		fleettest.Require(t, hub.report(p, condition))
	}
	loss := &ballastv1.Loss{Service: "web", Reason: "no\x1bVIP"}
	tell(join(pki.LB, "s1", "10.0.0.1"), loss)
	if len(heard.agents) > 0 {
		t.Errorf("a load balancer is believed: %v", heard.losses)
	}
	agent := join(pki.Agent, "s1", "10.0.0.11")
	tell(agent, loss, &ballastv1.Loss{Service: "mute", Unseen: true})
	if len(heard.agents) != 1 || len(heard.losses) != 2 || heard.losses["web"] != (health.Loss{Reason: "no VIP"}) || heard.losses["mute"].Reason == "" || !heard.losses["mute"].Unseen {
		t.Errorf("heard %v of %v", heard.losses, heard.agents)
	}
	tell(agent)
	if len(heard.agents) != 2 || len(heard.losses) != 0 {
		t.Errorf("heard %v of %v, not that the loss is over", heard.losses, heard.agents)
	}

	other := join(pki.Agent, "s1", "10.0.0.12") // a copy of its certificate
	if tell(other, loss); len(heard.agents) != 2 {
		t.Errorf("another host under its name is believed: %v", heard.losses)
	}
	other.since = time.Now().Add(-rivalLife)
	if tell(other, loss); len(heard.agents) != 3 {
		t.Error("an agent that has moved is not believed after a while")
	}
}
