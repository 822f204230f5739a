package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"github.com/ballast-lb/ballast/internal/await"
)

// installGatewayAPI has the API server know the Gateway API, as its release does.
func (c *cluster) installGatewayAPI() *versioned.Clientset {
	c.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	c.must(err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "config/crd/standard/gateway.networking.k8s.io_*s.yaml"))
	c.must(err)
	for _, file := range files {
		if strings.Contains(file, "_vap_") { // a policy, in several documents
			continue
		}
		text, err := os.ReadFile(file)
		c.must(err)
		c.must(c.Discovery().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").SetHeader("Content-Type", "application/yaml").Body(text).Do(background).Error())
	}
	client, err := versioned.NewForConfig(c.config())
	c.must(err)
	return client
}

// appPod is one of an app: the address of a process on a node.
type appPod struct{ node, address string }

// endpoints are the cluster's controller of EndpointSlices: it keeps those of all Services with a selector.
type endpoints struct {
	*cluster
	services listers.ServiceLister

	lock sync.Mutex
	pods map[string][]appPod // by namespace and label app
}

func (c *cluster) startEndpoints() *endpoints {
	factory := informers.NewSharedInformerFactory(c.Clientset, 0)
	informer := factory.Core().V1().Services()
	e := &endpoints{cluster: c, services: informer.Lister(), pods: map[string][]appPod{}}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(s any) { e.keep(s.(*core.Service)) }, UpdateFunc: func(_, s any) { e.keep(s.(*core.Service)) }})
	c.must(err)
	stop := make(chan struct{})
	factory.Start(stop)
	c.Cleanup(func() { close(stop); factory.Shutdown() })
	factory.WaitForCacheSync(stop)
	return e
}

// set says which pods an app of a namespace has.
func (e *endpoints) set(namespace, app string, pods ...appPod) {
	e.lock.Lock()
	e.pods[namespace+"/"+app] = pods
	e.lock.Unlock()
	list, err := e.services.List(labels.Everything())
	e.must(err)
	for _, s := range list {
		e.keep(s)
	}
}

func (e *endpoints) keep(s *core.Service) {
	if len(s.Spec.Selector) == 0 {
		return
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	slice := &discovery.EndpointSlice{ObjectMeta: meta.ObjectMeta{Name: s.Name, Namespace: s.Namespace, Labels: map[string]string{discovery.LabelServiceName: s.Name}},
		AddressType: discovery.AddressTypeIPv4}
	for _, p := range e.pods[s.Namespace+"/"+s.Spec.Selector["app"]] {
		slice.Endpoints = append(slice.Endpoints, ready(p.node, p.address))
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		slice.Ports = append(slice.Ports, discovery.EndpointPort{Name: &p.Name, Port: &p.TargetPort.IntVal, Protocol: &p.Protocol})
	}
	list := e.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := list.Update(background, slice, meta.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = list.Create(background, slice, meta.CreateOptions{})
	}
	if err != nil {
		e.Logf("endpoints of %s/%s: %v", s.Namespace, s.Name, err)
	}
}

// addBackend makes a Service of an app's pods.
func (c *cluster) addBackend(app string, protocol core.Protocol, port int32) {
	_, err := c.CoreV1().Services("default").Create(background, &core.Service{ObjectMeta: meta.ObjectMeta{Name: app}, Spec: core.ServiceSpec{Selector: map[string]string{"app": app},
		Ports: []core.ServicePort{{Name: "main", Port: 8000, TargetPort: intstr.FromInt32(port), Protocol: protocol}}}}, meta.CreateOptions{})
	c.must(err)
}

func pointer[T any](v T) *T { return &v }

func to(weights ...any) (list []gateway.BackendRef) {
	for i := 0; i < len(weights); i += 2 {
		list = append(list, gateway.BackendRef{Weight: pointer(int32(weights[i+1].(int))), BackendObjectReference: gateway.BackendObjectReference{
			Name: gateway.ObjectName(weights[i].(string)), Port: pointer(gateway.PortNumber(8000))}})
	}
	return list
}

// startDatagramEcho sends datagrams back on a node's pod.
func (c *cluster) startDatagramEcho(node string, port int) {
	var socket net.PacketConn
	c.must(c.spaces[podsOf(node)].Do(func() (err error) {
		socket, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	}))
	c.Cleanup(func() { _ = socket.Close() })
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo(buffer[:n], from)
		}
	}()
}

// Promise: A Gateway of a Kubernetes cluster gets an address, and its routes reach pods by TCP and UDP; a route that gets another backend breaks no
// connection, one that cannot be had changes nothing, and a deleted Gateway leaves nothing.
func TestAGatewayOfAClusterIsBalanced(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	c.startAPIServer()
	c.addNodes(c.nodes...)
	c.startFleet(c.announced())
	for _, node := range c.nodes {
		c.startPod(node)
	}
	c.startDatagramEcho("n1", 5353)
	pods := c.startEndpoints()
	pods.set("default", "web", appPod{"n1", podAddress("n1", 0)})
	pods.set("default", "other", appPod{"n2", podAddress("n2", 0)})
	pods.set("default", "dns", appPod{"n1", podAddress("n1", 0)})
	c.addBackend("web", core.ProtocolTCP, 8080)
	c.addBackend("other", core.ProtocolTCP, 8080)
	c.addBackend("dns", core.ProtocolUDP, 5353)
	t.Log("the Gateway API comes while ballast-kube runs")
	client := c.installGatewayAPI().GatewayV1()
	await.Nil(c, "the API server takes Gateways", func() error {
		_, err := client.GatewayClasses().Create(background, &gateway.GatewayClass{ObjectMeta: meta.ObjectMeta{Name: "ballast"}, Spec: gateway.GatewayClassSpec{ControllerName: classOfUs}}, meta.CreateOptions{})
		return err
	})
	parents := func(port gateway.PortNumber) gateway.CommonRouteSpec {
		return gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{{Name: "edge", Port: &port}}}
	}
	await.Nil(c, "all kinds are served", func() error {
		_, err := client.Gateways("default").Create(background, &gateway.Gateway{ObjectMeta: meta.ObjectMeta{Name: "edge"}, Spec: gateway.GatewaySpec{GatewayClassName: "ballast",
			Listeners: []gateway.Listener{{Name: "web", Protocol: gateway.TCPProtocolType, Port: 80}, {Name: "dns", Protocol: gateway.UDPProtocolType, Port: 53}}}}, meta.CreateOptions{})
		_, tcp := client.TCPRoutes("default").Create(background, &gateway.TCPRoute{ObjectMeta: meta.ObjectMeta{Name: "web"}, Spec: gateway.TCPRouteSpec{CommonRouteSpec: parents(80),
			Rules: []gateway.TCPRouteRule{{BackendRefs: to("web", 1)}}}}, meta.CreateOptions{})
		_, udp := client.UDPRoutes("default").Create(background, &gateway.UDPRoute{ObjectMeta: meta.ObjectMeta{Name: "dns"}, Spec: gateway.UDPRouteSpec{CommonRouteSpec: parents(53),
			Rules: []gateway.UDPRouteRule{{BackendRefs: to("dns", 1)}}}}, meta.CreateOptions{})
		for _, e := range []error{err, tcp, udp} {
			if e != nil && !apierrors.IsAlreadyExists(e) {
				return e
			}
		}
		return nil
	})
	address := ""
	await.Nil(c, "the Gateway is programmed", func() error {
		g, err := client.Gateways("default").Get(background, "edge", meta.GetOptions{})
		if err != nil {
			return err
		}
		if len(g.Status.Addresses) != 1 || !apimeta.IsStatusConditionTrue(g.Status.Conditions, "Programmed") || len(g.Status.Listeners) != 2 {
			return fmt.Errorf("%+v; events: %s", g.Status, c.events())
		}
		for _, l := range g.Status.Listeners {
			if !apimeta.IsStatusConditionTrue(l.Conditions, "Programmed") || l.AttachedRoutes != 1 {
				return fmt.Errorf("%+v; events: %s", l, c.events())
			}
		}
		address = g.Status.Addresses[0].Value
		return nil
	})
	c.awaitNodes(address, "n1")
	await.Nil(c, "datagrams come back", func() error {
		socket, err := c.dial("client")(background, "udp", address+":53")
		if err != nil {
			return err
		}
		defer socket.Close()
		_ = socket.SetDeadline(time.Now().Add(time.Second))
		if _, err := socket.Write([]byte("question")); err != nil {
			return err
		}
		answer := make([]byte, 64)
		n, err := socket.Read(answer)
		if err == nil && string(answer[:n]) != "question" {
			err = fmt.Errorf("have %q", answer[:n])
		}
		return err
	})

	reroute := func(refs []gateway.BackendRef) {
		await.Nil(c, "the route is changed", func() error {
			r, err := client.TCPRoutes("default").Get(background, "web", meta.GetOptions{})
			if err != nil {
				return err
			}
			r.Spec.Rules[0].BackendRefs = refs
			_, err = client.TCPRoutes("default").Update(background, r, meta.UpdateOptions{})
			return err
		})
	}
	accepted := func(status meta.ConditionStatus, reason gateway.RouteConditionReason) {
		await.Nil(c, fmt.Sprintf("the route is %s", reason), func() error {
			r, err := client.TCPRoutes("default").Get(background, "web", meta.GetOptions{})
			if err != nil {
				return err
			}
			if len(r.Status.Parents) == 1 {
				if a := apimeta.FindStatusCondition(r.Status.Parents[0].Conditions, "Accepted"); a != nil && a.Status == status && a.Reason == string(reason) && a.ObservedGeneration == r.Generation {
					return nil
				}
			}
			return fmt.Errorf("%+v", r.Status)
		})
	}
	ended := c.downloads(address, "n1")
	t.Log("another backend gets the connections")
	reroute(to("web", 0, "other", 1))
	c.awaitNodes(address, "n2")
	accepted(meta.ConditionTrue, gateway.RouteReasonAccepted)
	t.Log("weights cannot be had")
	reroute(to("web", 1, "other", 9))
	accepted(meta.ConditionFalse, gateway.RouteReasonUnsupportedValue)
	c.awaitNodes(address, "n2")
	ended()

	t.Log("the Gateway is deleted")
	c.must(client.Gateways("default").Delete(background, "edge", meta.DeleteOptions{}))
	await.Nil(c, "it is gone, and its Services are", func() error {
		if _, err := client.Gateways("default").Get(background, "edge", meta.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		list, err := c.CoreV1().Services("default").List(background, meta.ListOptions{})
		if err == nil && len(list.Items) != 4 {
			err = fmt.Errorf("%d Services", len(list.Items))
		}
		return err
	})
	if node, _, err := c.get("http://" + address); err == nil {
		t.Errorf("%s answers at its address", node)
	}
}
