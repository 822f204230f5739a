package daemon_test

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// A load balancer that has heard of it leaves a controller whose certificate is revoked, and does not follow it after kill -9 either, when it
// reaches nobody else.
//
// Promise: Nodes that have the list leave a revoked controller and follow it no more, also after a restart without
// controllers; older and forged lists take nothing back.
// Also held by TestARevokedControllerIsLeftByNodesAndBelievedNoMore.
func TestALoadBalancerFollowsNoRevokedControllerInItsNextLifeEither(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	h.start()
	honest, endHonest := h.control(1)
	honest.Topics.SetState(viewOf(5, nil, 2, 3))
	thief, endThief := h.control(2)
	defer endThief()
	thief.Topics.SetState(viewOf(5, nil, 2, 3))
	h.await("both controllers", func(s api.LBStatus) bool { return s.Revision == 5 && len(s.Controllers) == 2 })
	stolen, err := pki.ReadCertificate(filepath.Join(h.tlsDir(), "c2.crt"))
	require(t, err)
	list := []pki.Revocation{pki.RevocationOf(stolen, time.Now(), "stolen")}
	honest.Topics.SetRevoked(list, list)
	left := func(s api.LBStatus) bool { return slices.Equal(s.Controllers, remoteControllers[:1]) }
	h.await("it leaves the thief", left)
	thief.Topics.SetState(viewOf(99, nil, 66))
	honest.Topics.SetState(viewOf(6, nil, 2, 3, 4))
	h.await("the honest state", func(s api.LBStatus) bool { return s.Revision == 6 })
	h.expectMetrics("one is revoked", "ballast_certificates_revoked 1\n")

	endHonest()
	h.kill()
	h.start()
	h.await("the next life", func(s api.LBStatus) bool { return s.Ready && s.Revision == 6 })
	h.await("it says why nobody is connected", func(s api.LBStatus) bool {
		return slices.ContainsFunc(s.Problems, func(p string) bool {
			return strings.HasPrefix(p, "no controller is connected: the last state goes on (10.9.0.2:6443: ") && strings.Contains(p, "; 10.9.0.3:6443: ")
		})
	})
	h.await("it has refused the thief", func(api.LBStatus) bool { return hasRefused(h.metrics()) })
	h.expectServers("without anybody to believe", "s2 active", "s3 active", "s4 active")
	answer, err := h.client.Fleet().ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{})
	if err != nil || len(answer.Revocations) != 1 || answer.Revocations[0].Name != "c2" || answer.Revocations[0].Reason != "stolen" || answer.Unconfirmed == "" {
		t.Errorf("it tells %v, %v", answer, err)
	}
	if _, err := h.client.Fleet().RevokeCertificate(t.Context(), &ballastv1.RevokeCertificateRequest{Name: "c1", Force: true}); err == nil {
		t.Error("a load balancer revokes")
	}
	if _, err := h.client.Controllers().ListControllers(t.Context(), &ballastv1.ListControllersRequest{}); err == nil || !strings.Contains(err.Error(), "this is a load balancer") {
		t.Errorf("controllers, asked of it: %v", err)
	}
}

func hasRefused(metrics string) bool {
	return strings.Contains(metrics, "\nballast_certificates_refused_total ") && !strings.Contains(metrics, "\nballast_certificates_refused_total 0\n")
}

// An agent keeps it as well. It learns it here of the controller itself that is revoked.
func TestAnAgentFollowsNoRevokedControllerInItsNextLifeEither(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.role = "told-agent"
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})))
	hub, end := h.control("c1", "10.9.0.1:6443")
	defer end()
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	h.start()
	h.await("the state", func(s api.AgentStatus) bool { return s.Ready && s.Revision == 1 })
	list := []pki.Revocation{{Name: "c1", At: time.Now(), Ends: time.Now().Add(time.Hour)}}
	hub.Topics.SetRevoked(list, list)
	h.await("it leaves the controller", func(s api.AgentStatus) bool { return len(s.Controllers) == 0 })
	h.kill()
	h.start()
	h.await("the next life", func(s api.AgentStatus) bool { return s.Ready && s.Revision == 1 })
	h.await("it has refused the controller", func(s api.AgentStatus) bool { return hasRefused(h.metrics()) })
}
