package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestAServiceIsInTheFleetUntilItIsDeleted(t *testing.T) {
	w := newWorld(t, node(1), node(2), service("web"), slice("web", 1))
	router := &ballastv1.BGP{As: 64600, NeighborAs: 64512, Neighbors: []string{"203.0.113.0"}} // an address that no Service gets
	_, err := w.fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Nodes: []*ballastv1.Node{{Name: "lb1", Bgp: router}}})
	fleettest.Require(t, err)
	p := w.start("a")
	w.await("default:web:tcp", "n1*1")
	fleettest.Await(t, "its address is in the status", func() bool { return w.address("web") == "203.0.113.1" })
	if s := w.service("web"); !slices.Contains(s.Finalizers, mapping.DefaultClass) || *s.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("have %+v", s)
	}
	fleettest.Await(t, "an Event names it", func() bool { return w.saw("Address", "203.0.113.1") })
	p.awaitReady()
	w.put(slice("web", 1, 2, 2))
	w.await("default:web:tcp", "n1*1 n2*2")
	w.put(slice("web"))
	fleettest.Await(t, "an Event says that they stay", func() bool { return w.saw(mapping.ReasonKept, "n1, n2") })
	w.await("default:web:tcp", "n1*1 n2*2")
	wrong := w.service("web")
	wrong.Annotations = map[string]string{"ballast.io/dispach": "p2c"}
	w.update(wrong)
	fleettest.Await(t, "an Event says what is wrong", func() bool { return w.saw(mapping.ReasonInvalid, "did you mean dispatch?") })
	fleettest.Await(t, "metrics count it", func() bool {
		_, text := p.get("/metrics")
		return strings.Contains(text, "ballast_kube_services_refused 1") && strings.Contains(text, "ballast_kube_services_without_endpoints 1") &&
			strings.Contains(text, "ballast_kube_services 1") && strings.Contains(text, `ballast_kube_pool_addresses_used{pool="public"} 2`)
	})
	_, text := p.get("/metrics")
	metricstest.Check(t, text)
	if status, text := p.get("/healthz"); status != http.StatusOK {
		t.Errorf("not alive: %s", text)
	}
	leaving := w.service("web")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	w.update(leaving)
	w.await("default:web:tcp", "none")
	fleettest.Await(t, "the Service may go", func() bool { return len(w.service("web").Finalizers) == 0 && w.address("web") == "" })
}

// Promise: A restart of ballast-kube changes nothing, and neither does a cluster that has lost all Services.
func TestARestartChangesNothing(t *testing.T) {
	w := newWorld(t, node(1), service("web"), slice("web", 1), service("mail"), slice("mail", 1))
	p := w.start("a")
	fleettest.Await(t, "both have addresses", func() bool { return w.address("web") != "" && w.address("mail") != "" })
	web, mail := w.address("web"), w.address("mail")
	p.stop()
	before, err := w.fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(t, err)
	calls := w.calls.Load()
	unchanged := func(p *process) {
		t.Helper()
		fleettest.Await(t, "two passes are done", func() bool {
			_, text := p.get("/metrics")
			return p.leads() && !strings.Contains(text, `ballast_kube_passes_total{result="done"} 0`) && !strings.Contains(text, `ballast_kube_passes_total{result="done"} 1`)
		})
		after, err := w.fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		fleettest.Require(t, err)
		if after.Revision != before.Revision || w.calls.Load() != calls {
			t.Errorf("revision %d is %d now, after %d calls", before.Revision, after.Revision, w.calls.Load()-calls)
		}
		p.stop()
	}
	unchanged(w.start("a"))
	if w.address("web") != web || w.address("mail") != mail {
		t.Error("addresses have moved")
	}
	w.client = fake.NewClientset(node(1))
	unchanged(w.start("a"))
}

// Promise: Of two replicas of ballast-kube one leads, and the other takes over when it ends.
func TestReplicasTakeOver(t *testing.T) {
	w := newWorld(t, node(1), node(2), service("web"), slice("web", 1))
	one := w.start("a")
	fleettest.Await(t, "the first one leads", one.leads)
	other := w.start("b")
	one.awaitReady()
	other.awaitReady()
	w.await("default:web:tcp", "n1*1")
	if other.leads() {
		t.Error("both lead")
	}
	one.stop()
	fleettest.Await(t, "the other one leads", other.leads)
	w.put(slice("web", 1, 2))
	w.await("default:web:tcp", "n1*1 n2*1")
}

// A leader that the API server does not answer any more stops leading before another one begins.
func TestALeaderThatIsCutOffStopsLeadingBeforeAnotherBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, node(1), node(2), service("web"), slice("web", 1))
	var cut atomic.Bool
	alone := fake.NewClientset(node(1), node(2), service("web"), slice("web", 1)) // shares the lease with the other
	lease := func(action clienttesting.Action) (bool, runtime.Object, error) {
		if cut.Load() {
			return true, nil, errors.New("no route to host")
		}
		object, err := w.client.Invokes(action, nil)
		return true, object, err
	}
	alone.PrependReactor("*", "leases", lease)
	one := w.startWith("a", alone)
	fleettest.Await(t, "the first one leads", one.leads)
	other := w.start("b")
	w.await("default:web:tcp", "n1*1")
	cut.Store(true)
	both := false
	fleettest.Await(t, "the other one leads", func() bool {
		leads := other.leads()
		both = both || leads && one.leads()
		return leads
	})
	if both {
		t.Error("both have led at once")
	}
	fleettest.Await(t, "the first one is not ready", func() bool {
		status, text := one.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "no route to host")
	})
}

// Promise: While the API server or the controllers do not answer, the fleet stays as it is, and /readyz says why.
func TestNothingChangesWhileNobodyAnswers(t *testing.T) {
	w := newWorld(t, node(1), node(2), service("web"), slice("web", 1))
	p := w.start("a")
	w.await("default:web:tcp", "n1*1")
	p.awaitReady()
	w.down.Store(true)
	fleettest.Await(t, "it is not ready", func() bool {
		status, text := p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "read the fleet: ")
	})
	w.put(slice("web", 1, 2))
	if status, _ := p.get("/healthz"); status != http.StatusOK {
		t.Error("a restart would not help")
	}
	if have := w.servers("default:web:tcp"); have != "n1*1" {
		t.Errorf("have %s", have)
	}
	w.down.Store(false)
	w.await("default:web:tcp", "n1*1 n2*1")
	p.awaitReady()
	p.stop()

	silent := fake.NewClientset()
	silent.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	p = w.startWith("c", silent)
	fleettest.Await(t, "it is not ready", func() bool {
		status, text := p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "endpointslices")
	})
	fleettest.Await(t, "it has tried", func() bool {
		_, text := p.get("/metrics")
		return p.leads() && !strings.Contains(text, `ballast_kube_passes_total{result="failed"} 0`)
	})
	w.await("default:web:tcp", "n1*1 n2*1")
}

// Promise: A Service that controllers refuse keeps no other from the fleet.
func TestARefusedServiceHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, node(1))
	for i := range 20 {
		name := fmt.Sprint("s", i)
		fleettest.Require(t, w.client.Tracker().Add(service(name)))
		fleettest.Require(t, w.client.Tracker().Add(slice(name, 1)))
	}
	no := wire(connect.CodeInvalidArgument, "services.default:s7:tcp.vip: it is the address of lb1")
	refuse := func(r *ballastv1.ApplyServicesRequest) error {
		if slices.ContainsFunc(r.Services, func(s *ballastv1.Service) bool { return s.Name == "default:s7:tcp" }) {
			return no
		}
		return nil
	}
	w.refuse.Store(&refuse)
	w.start("a")
	for i := range 20 {
		if i != 7 {
			w.await(fmt.Sprintf("default:s%d:tcp", i), "n1*1")
		}
	}
	fleettest.Await(t, "an Event says why", func() bool { return w.saw(reasonRefused, "it is the address of lb1") })
	if w.address("s7") != "" || w.servers("default:s7:tcp") != "none" {
		t.Error("the refused one has an address")
	}
	w.refuse.Store(nil)
	w.await("default:s7:tcp", "n1*1")
	fleettest.Await(t, "it has an address", func() bool { return w.address("s7") != "" })
}

// Stores of controllers take so many changes at once.
func TestMoreServicesThanOneChangeCanHaveComeInSeveral(t *testing.T) {
	w := newWorld(t, node(1))
	const most = 6
	tooMany := wire(connect.CodeInternal, "commit: 20 documents: there is room for 6")
	refuse := func(r *ballastv1.ApplyServicesRequest) error {
		answer, err := w.fleet.GetFleet(context.Background(), &ballastv1.GetFleetRequest{})
		if err == nil && len(r.Services)-len(answer.Services) > most {
			return tooMany
		}
		return err
	}
	w.refuse.Store(&refuse)
	for i := range 20 {
		fleettest.Require(t, w.client.Tracker().Add(service(fmt.Sprint("s", i))))
	}
	w.start("a")
	for i := range 20 {
		w.await(fmt.Sprintf("default:s%d:tcp", i), "")
	}
}

// Promise: What an operator sets of a node stays until its endpoints change, also while other services come and go.
func TestWeightsThatOperatorsSetStay(t *testing.T) {
	w := newWorld(t, node(1), node(2), service("web"), slice("web", 1, 2))
	w.start("a")
	w.await("default:web:tcp", "n1*1 n2*1")
	_, err := w.fleet.WeighServer(t.Context(), &ballastv1.WeighServerRequest{Service: "default:web:tcp", Server: "n1", Weight: 7})
	fleettest.Require(t, err)
	_, err = w.fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "people's", Vip: "198.51.100.1", Ports: []uint32{80}}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a name that is none: %v", err)
	}
	_, err = w.fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "people", Vip: "198.51.100.1", Ports: []uint32{80}}})
	fleettest.Require(t, err)
	_, err = w.client.CoreV1().Services("default").Create(t.Context(), service("mail"), metav1.CreateOptions{})
	fleettest.Require(t, err)
	w.await("default:mail:tcp", "")
	if have := w.servers("default:web:tcp"); have != "n1*7 n2*1" {
		t.Errorf("have %s", have)
	}
	w.put(slice("web", 1, 1, 2))
	w.await("default:web:tcp", "n1*2 n2*1")
	_, err = w.fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "default:web:tcp", Dispatch: "p2c"}})
	fleettest.Require(t, err)
	fleettest.Await(t, "a setting that nobody asked for is undone", func() bool {
		answer, err := w.fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		fleettest.Require(t, err)
		i := slices.IndexFunc(answer.Services, func(s *ballastv1.Service) bool { return s.Name == "default:web:tcp" })
		return answer.Services[i].Dispatch == model.DispatchWRR.String()
	})
	if w.servers("people") != "" {
		t.Error("people's service is gone")
	}
}

// A Service without our finalizer could be deleted without our seeing it.
func TestAServiceIsNotInTheFleetBeforeItsDeletionWouldBeSeen(t *testing.T) {
	w := newWorld(t, node(1), service("web"), slice("web", 1), service("mail"), slice("mail", 1))
	var let atomic.Bool
	w.client.PrependReactor("patch", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if !let.Load() && patch.GetName() == "web" {
			return true, nil, errors.New("a webhook refuses it")
		}
		return false, nil, nil
	})
	w.start("a")
	w.await("default:mail:tcp", "n1*1")
	if have := w.servers("default:web:tcp"); have != "none" {
		t.Errorf("have %s", have)
	}
	let.Store(true)
	w.await("default:web:tcp", "n1*1")
}

// Promise: An object that the API server takes no change of holds up no other: changes are followed at once, as ever.
func TestAnObjectThatCannotBeChangedHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, node(1), service("stuck"), slice("stuck", 1))
	w.client.PrependReactor("patch", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch := action.(clienttesting.PatchAction); patch.GetName() == "stuck" && patch.GetSubresource() == "status" {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "stuck", nil)
		}
		return false, nil, nil
	})
	w.start("a")
	made := 0
	fleettest.Await(t, "eight Services are served, one after the other", func() bool {
		if made > 0 && w.servers(fmt.Sprintf("default:web%d:tcp", made)) != "n1*1" {
			return false
		}
		if made++; made > 8 {
			return true
		}
		name := fmt.Sprint("web", made)
		_, err := w.client.DiscoveryV1().EndpointSlices("default").Create(w.Context(), slice(name, 1), metav1.CreateOptions{})
		fleettest.Require(t, err)
		_, err = w.client.CoreV1().Services("default").Create(w.Context(), service(name), metav1.CreateOptions{})
		fleettest.Require(t, err)
		return false
	})
}
