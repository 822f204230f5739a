package api_test

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// There is no file that the places of lists would be of.
func TestARefusedChangeNamesServicesAndServers(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	_, err := fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: &ballastv1.Server{Name: "10.0.0.1", Address: "10.0.0.3"}})
	if err == nil || !strings.Contains(err.Error(), `services.web.servers.10.0.0.1.name: "10.0.0.1" is also the name of server 10.0.0.1 (10.0.0.1)`) {
		t.Errorf("a name that is taken: %v", err)
	}
	_, err = fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "web", Dispatch: "rr", Affinity: "hash"}})
	if err == nil || !strings.Contains(err.Error(), "services.web.dispatch: ") {
		t.Errorf("a combination that cannot work: %v", err)
	}
}
