package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	gwfake "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/fake"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/fleettest"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/pki"
)

// world is a cluster and a fleet.
type world struct {
	*testing.T
	client   *fake.Clientset
	gateways *gwfake.Clientset
	fleet    ballastv1connect.FleetClient // as an operator
	ours     ballastv1connect.FleetClient // as ballast-kube
	refuse   atomic.Pointer[func(*ballastv1.ApplyServicesRequest) error]
	down     atomic.Bool  // controllers do not answer
	calls    atomic.Int32 // of ApplyServices

	resources atomic.Pointer[metav1.APIResourceList] // that the API server has besides its own; nil: none
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{T: t, client: fake.NewClientset(objects...), gateways: gwfake.NewSimpleClientset()}
	memory := &apitest.Memory{}
	w.fleet, w.ours = w.serve(memory, api.Caller{Name: "me", Role: string(pki.Ctl)}), w.serve(memory, api.Caller{Name: "kube", Role: string(pki.Source)})
	return w
}

// serve serves a fleet to one caller.
func (w *world) serve(memory *apitest.Memory, by api.Caller) ballastv1connect.FleetClient {
	_, handler := api.NewFleetHandler(memory)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if by.Role == string(pki.Source) && w.down.Load() {
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(rw, r.WithContext(api.WithCaller(r.Context(), by)))
	}))
	w.Cleanup(server.Close)
	return &refusing{api.NewFleetClient([]string{server.Listener.Addr().String()}, nil), w}
}

// refusing answers in the place of a controller that refuses something.
type refusing struct {
	ballastv1connect.FleetClient
	*world
}

func (r *refusing) ApplyServices(ctx context.Context, request *ballastv1.ApplyServicesRequest) (*ballastv1.ChangeResponse, error) {
	r.calls.Add(1)
	if refuse := r.refuse.Load(); refuse != nil {
		if err := (*refuse)(request); err != nil {
			return nil, err
		}
	}
	return r.FleetClient.ApplyServices(ctx, request)
}

// wire is an error as a client gets it.
func wire(code connect.Code, text string) error {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connect.NewErrorWriter().Write(w, r, connect.NewError(code, errors.New(text)))
	}))
	defer server.Close()
	_, err := api.NewFleetClient([]string{server.Listener.Addr().String()}, nil).ApplyServices(context.Background(), &ballastv1.ApplyServicesRequest{})
	return err
}

// process is a replica.
type process struct {
	*world
	url  string
	stop func()
}

func (w *world) start(identity string) *process { return w.startWith(identity, w.client) }

func (w *world) startWith(identity string, client *fake.Clientset) *process {
	w.Helper()
	return w.startOn(identity, client, "203.0.113.0/24")
}

// startOn is start with another pool.
func (w *world) startOn(identity string, client *fake.Clientset, pool string) *process {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(w, err)
	first, err := mapping.ParseRange(pool)
	fleettest.Require(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o := Options{Mapping: mapping.Options{Class: mapping.DefaultClass, Owner: "kube", Pools: []mapping.Pool{{Name: "public", Ranges: []mapping.Range{first}}}},
		Kubernetes: apiServer{client, &w.resources}, Gateways: w.gateways, Fleet: w.ours, Identity: identity, Namespace: "ballast", Lease: "ballast-kube", Resync: time.Second, Listener: listener, Version: "1.2.3", Log: fleettest.Log(w)}
	go func() { done <- Run(ctx, o) }()
	p := &process{w, "http://" + listener.Addr().String(), func() {}}
	stopped := false
	p.stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				w.Errorf("%s ends with %v", identity, err)
			}
		}
	}
	w.Cleanup(p.stop)
	return p
}

// get asks a replica's port.
func (p *process) get(path string) (status int, text string) {
	answer, err := http.Get(p.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fleettest.Require(p, err)
	return answer.StatusCode, string(body)
}

func (p *process) leads() bool {
	_, text := p.get("/metrics")
	return strings.Contains(text, "\nballast_kube_leading 1\n")
}

func (p *process) awaitReady() {
	p.Helper()
	fleettest.Await(p, "it is ready", func() bool { status, _ := p.get("/readyz"); return status == http.StatusOK })
}

func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	class := mapping.DefaultClass
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, f := range change {
		f(s)
	}
	return s
}

func node(number int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", number)}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: netip.AddrFrom4([4]byte{10, 0, byte(number >> 8), byte(number)}).String()}}
	return n
}

func slice(of string, nodes ...int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of, Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: discoveryv1.AddressTypeIPv4}
	for i, number := range nodes {
		name := fmt.Sprint("n", number)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &name, Addresses: []string{fmt.Sprint("10.9.0.", i)}})
	}
	return s
}

// servers of a service of the fleet, as NAME*WEIGHT; none: there is no such service.
func (w *world) servers(name string) string {
	answer, err := w.fleet.GetFleet(w.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(w, err)
	for _, s := range answer.Services {
		if s.Name == name {
			var list []string
			for _, server := range s.Servers {
				list = append(list, fmt.Sprintf("%s*%d", server.Name, server.GetWeight()))
			}
			return strings.Join(list, " ")
		}
	}
	return "none"
}

func (w *world) await(name, servers string) {
	w.Helper()
	have := ""
	defer func() {
		if have != servers {
			w.Logf("%s has servers %q, not %q", name, have, servers)
		}
	}()
	fleettest.Await(w, name+" has "+servers, func() bool { have = w.servers(name); return have == servers })
}

func (w *world) service(name string) *corev1.Service {
	s, err := w.client.CoreV1().Services("default").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w, err)
	return s
}

// address is the one in a Service's status.
func (w *world) address(name string) string {
	if ingress := w.service(name).Status.LoadBalancer.Ingress; len(ingress) > 0 {
		return ingress[0].IP
	}
	return ""
}

func (w *world) saw(reason, text string) bool {
	list, err := w.client.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{})
	fleettest.Require(w, err)
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason && strings.Contains(e.Message, text) })
}

func (w *world) update(s *corev1.Service) {
	_, err := w.client.CoreV1().Services("default").Update(w.Context(), s, metav1.UpdateOptions{})
	fleettest.Require(w, err)
}

func (w *world) put(s *discoveryv1.EndpointSlice) {
	_, err := w.client.DiscoveryV1().EndpointSlices("default").Update(w.Context(), s, metav1.UpdateOptions{})
	fleettest.Require(w, err)
}
