package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ballast-lb/ballast/internal/await"
)

var background = context.Background()

// page is what a pod sends of one that lasts, until the test lets it end.
const page = 1000

// stream sends a page; one of path /last a byte every 20 ms, and no more than the page.
func (c *cluster) stream(w http.ResponseWriter, r *http.Request) {
	count, pause := 1, time.Duration(0)
	if r.URL.Path == "/last" {
		count, pause = page, 20*time.Millisecond
	}
	for range count {
		_, _ = w.Write([]byte("."))
		w.(http.Flusher).Flush()
		time.Sleep(pause)
	}
}

// addNodes makes the API server know nodes.
func (c *cluster) addNodes(names ...string) {
	for _, name := range names {
		node, err := c.CoreV1().Nodes().Create(background, &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
		c.must(err)
		node.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: nodeAddress(name)}}
		node.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
		_, err = c.CoreV1().Nodes().UpdateStatus(background, node, meta.UpdateOptions{})
		c.must(err)
	}
}

// ready is a pod at an address of a node that takes new connections, ending is one that serves those that it has.
func ready(node, address string) discovery.Endpoint  { return endpoint(node, address, true) }
func ending(node, address string) discovery.Endpoint { return endpoint(node, address, false) }

func endpoint(node, address string, ready bool) discovery.Endpoint {
	serving, terminating := true, !ready
	return discovery.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}}
}

// setEndpoints says which pods the service has.
func (c *cluster) setEndpoints(endpoints ...discovery.Endpoint) {
	c.Helper()
	port, name, protocol := int32(8080), "http", core.ProtocolTCP
	slice := &discovery.EndpointSlice{ObjectMeta: meta.ObjectMeta{Name: "web-1", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: endpoints, Ports: []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
	list := c.DiscoveryV1().EndpointSlices("default")
	_, err := list.Update(background, slice, meta.UpdateOptions{})
	if err != nil {
		_, err = list.Create(background, slice, meta.CreateOptions{})
	}
	c.must(err)
}

// addService makes the service, and waits for its address.
func (c *cluster) addService() (address string) {
	c.makeService()
	return c.awaitAddress()
}

func (c *cluster) makeService() {
	allocate := false
	class := classOfUs
	_, err := c.CoreV1().Services("default").Create(background, &core.Service{ObjectMeta: meta.ObjectMeta{Name: "web"}, Spec: core.ServiceSpec{
		Type: core.ServiceTypeLoadBalancer, LoadBalancerClass: &class, ExternalTrafficPolicy: core.ServiceExternalTrafficPolicyLocal, AllocateLoadBalancerNodePorts: &allocate,
		Ports: []core.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: core.ProtocolTCP}},
	}}, meta.CreateOptions{})
	c.must(err)
}

func (c *cluster) awaitAddress() (address string) {
	await.Nil(c, "the Service has an address", func() error {
		service, err := c.CoreV1().Services("default").Get(background, "web", meta.GetOptions{})
		if err != nil {
			return err
		}
		if len(service.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("%+v; events: %s", service.Status, c.events())
		}
		address = service.Status.LoadBalancer.Ingress[0].IP
		return nil
	})
	return address
}

func (c *cluster) events() (text string) {
	events, err := c.CoreV1().Events("default").List(background, meta.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, event := range events.Items {
		text += event.Reason + ": " + event.Message + "; "
	}
	return text
}

// get asks the service, by a connection of its own, and returns the node that answers.
func (c *cluster) get(url string) (node string, body io.ReadCloser, err error) {
	transport := &http.Transport{DialContext: c.dial("client"), DisableKeepAlives: true}
	ctx, cancel := context.WithCancel(background)
	patient := time.AfterFunc(5*time.Second, cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", nil, err
	}
	response, err := transport.RoundTrip(request)
	if !patient.Stop() || err != nil {
		cancel()
		return "", nil, errors.Join(errors.New("no answer"), err)
	}
	if client := response.Header.Get("Client"); client != "10.61.0.2" {
		cancel()
		return "", nil, fmt.Errorf("the pod sees a client at %s", client)
	}
	return response.Header.Get("Node"), response.Body, nil
}

// awaitReady waits until a role of a node says that it does its work.
func (c *cluster) awaitReady(node, role string) {
	c.Helper()
	await.Nil(c, role+" of "+node+" is ready", func() error {
		status, err := c.client(node, role).Status(background)
		if err == nil && !status.Ready {
			err = fmt.Errorf("%+v", status)
		}
		return err
	})
}

// awaitNodes waits until exactly these nodes get new connections.
func (c *cluster) awaitNodes(address string, want ...string) {
	c.Helper()
	await.Nil(c, fmt.Sprintf("%v get new connections", want), func() error {
		got := map[string]int{}
		for range 20 {
			node, body, err := c.get("http://" + address)
			if err != nil {
				return err
			}
			_ = body.Close()
			got[node]++
		}
		for _, node := range want {
			if got[node] == 0 {
				return fmt.Errorf("have %v", got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("have %v", got)
		}
		return nil
	})
}

// Promise: A Service of a Kubernetes cluster gets an address that answers, without a router that speaks BGP; a pod's end, the loss of
// the API server and of the node that has the address break no connection to a pod that lives.
func TestAServiceOfAClusterIsBalanced(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	server := c.startAPIServer()
	c.addNodes(c.nodes...)
	c.startFleet(c.announced())
	first, second := podAddress("n1", 0), podAddress("n2", 0)
	for _, node := range c.nodes {
		c.startPod(node)
	}
	c.setEndpoints(ready("n1", first), ready("n2", second))
	address := c.addService()
	c.awaitNodes(address, "n1", "n2")
	for _, node := range c.nodes {
		c.awaitReady(node, "agent")
		c.diagnose(node, "agent", "SYNs of the agent to tcp port 80", "connections keep their cookies by entries per flow")
	}

	ended := c.downloads(address, "n1", "n2")
	t.Log("the pod of n1 ends, and serves on meanwhile")
	c.setEndpoints(ending("n1", first), ready("n2", second))
	c.awaitNodes(address, "n2")
	t.Log("there is another in its place")
	c.setEndpoints(ready("n1", first), ready("n2", second))
	c.awaitNodes(address, "n1", "n2")
	t.Log("the API server is gone")
	server.end(syscall.SIGKILL)
	c.awaitNodes(address, "n1", "n2")
	ended()
	c.restartAPIServer()
	c.awaitAPIServer()

	owner := c.owner(address)
	lives := map[string]string{"n1": "n2", "n2": "n1"}[owner]
	ended = c.downloads(address, lives)
	t.Logf("%s, which has the address, loses its link", owner)
	c.must(c.spaces["router"].SetLink(owner, false))
	await.Nil(c, "the address has moved", func() error {
		if now := c.owner(address); now != lives {
			return fmt.Errorf("%q has it", now)
		}
		return nil
	})
	ended()
	c.awaitNodes(address, lives)
}

// downloads begins 20 that last at each of the nodes, and returns what waits for their ends: none may be cut.
func (c *cluster) downloads(address string, nodes ...string) (await func()) {
	c.Helper()
	const each = 20
	ended := make(chan error)
	begun := map[string]int{}
	count := 0
	for len(begun) < len(nodes) || slices.ContainsFunc(nodes, func(node string) bool { return begun[node] < each }) {
		node, body, err := c.get("http://" + address + "/last")
		c.must(err)
		if !slices.Contains(nodes, node) || begun[node] == each {
			_ = body.Close()
			continue
		}
		begun[node]++
		count++
		go func() {
			text, err := io.ReadAll(body)
			if err == nil && len(text) != page {
				err = fmt.Errorf("%d bytes", len(text))
			}
			if err != nil {
				err = fmt.Errorf("from %s: %w", node, err)
			}
			ended <- err
		}()
	}
	return func() {
		c.Helper()
		for range count {
			if err := <-ended; err != nil {
				c.Error(err)
			}
		}
	}
}

// owner is the node whose card the router sends the address to.
func (c *cluster) owner(address string) string {
	c.Helper()
	neighbour := c.run("router", "/sbin/ip", "neighbour", "show", address)
	for _, node := range c.nodes {
		mac, err := c.spaces[node].MAC("eth0")
		c.must(err)
		if strings.Contains(neighbour, mac.String()) {
			return node
		}
	}
	return ""
}
