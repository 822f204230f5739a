package kube

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/fleettest"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
)

// permitted are the verbs of resources that deploy/kubernetes/rbac.yaml allows: "patch services/status".
func permitted(t *testing.T) (list []string) {
	text, err := os.ReadFile("../../deploy/kubernetes/rbac.yaml")
	fleettest.Require(t, err)
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var role rbacv1.ClusterRole // a Role has the same rules
		err := documents.Decode(&role)
		if errors.Is(err, io.EOF) {
			return list
		}
		fleettest.Require(t, err)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					list = append(list, verb+" "+resource)
				}
			}
		}
	}
}

// The account of the documents may do what the program does, and nothing else.
func TestTheAccountMayDoWhatIsDone(t *testing.T) {
	w := newWorld(t, node(1), service("web"), slice("web", 1), service("wrong", func(s *corev1.Service) { s.Annotations[mapping.AnnotationPrefix+"dispach"] = "rr" }),
		behind("app"), behind("other"), slice("app", 1))
	w.installGateways(gatewayClass(), gateway("edge", 80, 81), tcpRoute("app", "edge", 80, "app"), udpRoute("app", "edge", 81, "app"), tlsRoute("app", "edge", 82, "app"))
	p := w.start("a")
	fleettest.Await(t, "a Service has its address", func() bool { return w.address("web") != "" })
	fleettest.Await(t, "Events are written", func() bool {
		return w.saw(mapping.ReasonInvalid, "dispatch") && w.saw(reasonAddress, "203.0.113.")
	})
	fleettest.Await(t, "listeners have their services", func() bool {
		return w.servers("default:edge:tcp:80") == "n1*1" && w.servers("default:edge:udp:81") == "n1*1"
	})
	fleettest.Await(t, "routes have their statuses", func() bool { return len(w.tls("app").Status.Parents) == 1 && len(w.udp("app").Status.Parents) == 1 })
	w.changeTCP("app", func(r *gw.TCPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "other" })
	fleettest.Await(t, "the Service of the listener follows", func() bool { return w.selects("edge", 80) == "other" })
	w.changeTCP("app", func(r *gw.TCPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "none" })
	fleettest.Await(t, "the Service of the listener goes", func() bool { return w.selects("edge", 80) == "" })
	p.stop()
	done := []string{}
	for _, action := range slices.Concat(w.client.Actions(), w.gateways.Actions()) {
		resource := action.GetResource().Resource
		if sub := action.GetSubresource(); sub != "" {
			resource += "/" + sub
		}
		one := action.GetVerb() + " " + resource
		if action.GetVerb() == "get" && resource != "leases" || action.GetVerb() == "list" && resource == "events" || action.GetVerb() == "update" && resource == "tcproutes" {
			continue // the test's, and whether there is the Gateway API, which all accounts may ask
		}
		if !slices.Contains(done, one) {
			done = append(done, one)
		}
	}
	may := permitted(t)
	for _, one := range done {
		if !slices.Contains(may, one) {
			t.Errorf("%s is done, and the account may not", one)
		}
	}
	const repeated = "patch events" // of an Event that comes again
	for _, one := range may {
		if !slices.Contains(done, one) && one != repeated {
			t.Errorf("the account may %s, and never does", one)
		}
	}
	if len(may) < 10 {
		t.Errorf("the account may %s alone", strings.Join(may, ", "))
	}
}
