package kubernetes

import (
	"os"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/await"
)

// conformance is the Gateway API's own suite: test/kubernetes/conformance.
const conformance = "../../bin/conformance"

// kept is its report, without the date.
const kept = "conformance/report.yaml"

// Promise: The Gateway API's conformance suite finds no fault of Gateways, TCPRoutes, UDPRoutes and TLSRoutes but what
// test/kubernetes/conformance/report.yaml names as skipped.
func TestTheConformanceSuiteFindsNoFault(t *testing.T) {
	if missing(conformance, echo) {
		t.Skip("make test-kubernetes builds what this needs, and runs it as root")
	}
	c := newCluster(t, "n1", "n2")
	c.pool = "10.60.0.128/26"
	c.startAPIServer()
	c.addNodes(c.nodes...)
	client := c.installGatewayAPI().GatewayV1()
	c.startFleet(c.announced())
	await.Nil(c, "the API server takes GatewayClasses", func() error {
		_, err := client.GatewayClasses().Create(background, &gateway.GatewayClass{ObjectMeta: meta.ObjectMeta{Name: "ballast"}, Spec: gateway.GatewayClassSpec{ControllerName: classOfUs}}, meta.CreateOptions{})
		return err
	})
	report := c.path("report.yaml")
	arguments := []string{conformance, "-test.v", "-test.timeout=20m", "--report-output=" + report}
	w := c.startWorkloads()
	suite := c.startWith([]string{"KUBECONFIG=" + c.path("kubeconfig")}, "client", arguments...)
	w.work(suite)
	if code := suite.command.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the suite ends with status %d", code)
	}
	text, err := os.ReadFile(report)
	c.must(err)
	if os.Getenv("UPDATE_DOCS") != "" {
		c.must(os.WriteFile(kept, text, 0o644))
	}
	before, err := os.ReadFile(kept)
	c.must(err)
	if string(text) != string(before) {
		t.Errorf("%s is not what the suite reports (UPDATE_DOCS=1 writes it): %s", kept, text)
	}
}
