package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/daemon/agent/probes"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tracking"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestOnlyServicesWithSessionTLSLoseWhatTheKernelResets(t *testing.T) {
	r := &reconciler{known: true, features: features{tracked: &tracking.Tracking{Resets: "the kernel resets them"}, probes: probes.New(nil, nil, nil)}}
	for _, session := range []model.Session{model.SessionNone, model.SessionTLS} {
		service := &model.Service{Name: fmt.Sprint(session), VIP: netip.MustParseAddr("198.51.100.10"), Session: session}
		r.serving.Wanted.Direct = append(r.serving.Wanted.Direct, plan.AgentService{Service: service})
	}
	if losses := r.losses(); len(losses) != 1 || losses[0].Service != fmt.Sprint(model.SessionTLS) || losses[0].Reason != "the kernel resets them" || !losses[0].Unseen {
		t.Errorf("it reports that it loses %v", losses)
	}
}
