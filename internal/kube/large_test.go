package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	clienttesting "k8s.io/client-go/testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
)

// What is counted are requests, which is what takes time in a real one.
func TestALargeClusterTakesOneChangeOfTheFleetAndTwoOfEachService(t *testing.T) {
	const services, nodes = 1024, 1250 // the fake clientset takes milliseconds for each patch
	w := newWorld(t)
	add := func(n int) {
		name := fmt.Sprint("s", n)
		fleettest.Require(t, w.client.Tracker().Add(service(name)))
		fleettest.Require(t, w.client.Tracker().Add(slice(name, n%nodes+1, (n+1)%nodes+1, (n+2)%nodes+1)))
	}
	for n := range nodes {
		fleettest.Require(t, w.client.Tracker().Add(node(n+1)))
	}
	for n := range services {
		add(n)
	}
	p := w.startOn("a", w.client, "10.64.0.0/16")
	fleettest.Await(t, "all are in the fleet and have addresses", func() bool {
		status, text := p.get("/metrics")
		return status == http.StatusOK && strings.Contains(text, fmt.Sprintf("\nballast_kube_services %d\n", services)) && strings.Contains(text, "\nballast_kube_services_refused 0\n")
	})
	answer, err := w.fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(t, err)
	if len(answer.Services) != services || w.address(fmt.Sprint("s", services-1)) == "" || w.calls.Load() != 1 {
		t.Errorf("%d services after %d changes", len(answer.Services), w.calls.Load())
	}
	patches := 0
	for _, action := range w.client.Actions() {
		if _, ok := action.(clienttesting.PatchAction); ok && action.GetResource().Resource == "services" {
			patches++
		}
	}
	if patches != 2*services {
		t.Errorf("%d patches of %d Services", patches, services)
	}
}
