// Package conformance runs the Gateway API's conformance suite against a cluster that ballast-kube serves: test/kubernetes builds it, and runs it on the
// client's host. It is a module of its own, so that none of what it needs comes into Ballast's.
package conformance

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	suiteof "sigs.k8s.io/gateway-api/conformance"
	reports "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

var all = flag.Bool("all", false, "run what is known to fail, too")

// Why a test is not run.
const (
	layer7  = "it is about listeners of HTTP or HTTPS, which a layer-4 load balancer does not serve"
	weights = "several backends of a route have a weight: a node spreads connections over its pods evenly"
	sni     = "several server names of a port have backends of their own, or none: load balancers do not read SNI"
	silent  = "a listener whose route has no backend should refuse connections: no load balancer announces its address, so that they find nobody"
)

var skipped = map[string]string{
	"GatewayInvalidRouteKind": layer7, "GatewayInvalidTLSConfiguration": layer7, "GatewayListenerUnsupportedProtocol": layer7, "GatewayModifyListeners": layer7,
	"GatewaySecretInvalidReferenceGrant": layer7, "GatewaySecretMissingReferenceGrant": layer7, "GatewaySecretReferenceGrantAllInNamespace": layer7,
	"GatewaySecretReferenceGrantSpecific": layer7,
	"TCPRouteWeightedRouting":             weights, "UDPRouteWeightedRouting": weights,
	"TLSRouteHostnameIntersection":         sni,
	"TLSRouteInvalidBackendRefNonexistent": silent, "TLSRouteInvalidBackendRefUnknownKind": silent,
}

// manifests are the suite's. Gateways whose listeners are all of HTTP and HTTPS are never ready here: tests of other Gateways do not wait for them.
type manifests struct{ fs.FS }

func (m manifests) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(m.FS, name)
	if err != nil {
		return nil, err
	}
	documents := strings.Split(string(text), "\n---")
	for i, document := range documents {
		if documents[i], err = withoutWaiting(document); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return []byte(strings.Join(documents, "\n---\n")), nil
}

// withoutWaiting marks such a Gateway.
func withoutWaiting(document string) (string, error) {
	var g gatewayv1.Gateway
	if !strings.Contains(document, "\nkind: Gateway\n") {
		return document, nil
	}
	if err := yaml.Unmarshal([]byte(document), &g); err != nil {
		return "", err
	}
	if slices.ContainsFunc(g.Spec.Listeners, func(l gatewayv1.Listener) bool {
		return l.Protocol != gatewayv1.HTTPProtocolType && l.Protocol != gatewayv1.HTTPSProtocolType && l.Protocol != "INVALID"
	}) {
		return document, nil
	}
	if g.Annotations == nil {
		g.Annotations = map[string]string{}
	}
	g.Annotations[kubernetes.GatewayExcludedFromReadinessChecks] = "true"
	marked, err := yaml.Marshal(&g)
	return string(marked), err
}

func TestConformance(t *testing.T) {
	options := suiteof.DefaultOptions(t)
	options.GatewayClassName = "ballast"
	options.ManifestFS = []fs.FS{manifests{&suiteof.Manifests}}
	options.ConformanceProfiles = []suite.ConformanceProfileName{suite.GatewayTCPConformanceProfileName, suite.GatewayTLSConformanceProfileName, suite.GatewayUDPConformanceProfileName}
	options.Implementation = reports.Implementation{Organization: "ballast-lb", Project: "ballast", URL: "https://github.com/ballast-lb/ballast", Version: "main",
		Contact: []string{"https://github.com/ballast-lb/ballast/issues"}}
	options.TimeoutConfig = config.DefaultTimeoutConfig()
	options.SupportedFeatures = []features.FeatureName{features.SupportGateway, features.SupportReferenceGrant, features.SupportTCPRoute, features.SupportTLSRoute, features.SupportUDPRoute}
	if !*all {
		for name, why := range skipped {
			t.Logf("not run: %s: %s", name, why)
			options.SkipTests = append(options.SkipTests, name)
		}
	}
	t.Cleanup(func() { // after the suite's, which writes it
		if err := settle(options.ReportOutputPath); err != nil {
			t.Error(err)
		}
	})
	suiteof.RunConformanceWithOptions(t, options)
}

// settle has a report be the same whenever the results are: without a date, the profiles by name.
func settle(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var report reports.ConformanceReport
	if err := yaml.Unmarshal(text, &report); err != nil {
		return err
	}
	report.Date = ""
	slices.SortFunc(report.ProfileReports, func(a, b reports.ProfileReport) int { return strings.Compare(a.Name, b.Name) })
	if text, err = yaml.Marshal(report); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
