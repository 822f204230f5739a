package kubernetes

import (
	"syscall"
	"testing"
)

// Situations that users of others have reported in public, each as small as it can be. The rest of them are steps of TestARolloutOfAllNodesBreaksNoConnection:
//
//	kubernetes/kubernetes#129605    a node leaves that connections to pods of other nodes pass through: "switch n1 off"
//	cilium/cilium#27726             another node gets the packets of a connection, and sends them to another pod: each answer names its pod
//	cilium/cilium#27730             a client is not told that its connection has ended: all that ended with their pod have begun again by the end of the step
//	cilium/cilium#29667             a restart of the daemon breaks connections of pods elsewhere: "restart the load balancer", by SIGTERM and SIGKILL
//	metallb.universe.tf/concepts/bgp a router that has another set of routes resets connections: each step that announces or withdraws a node

// Public: cilium/cilium#23761 (an endpoint leaves the service while its pod lives: its connections are cut), cilium/cilium#48271 (it gets new
// connections for half a minute more), cilium/cilium#48050 (it leaves while the API server is away, and stays a backend).
func TestAnEndpointThatLeavesTheServiceKeepsItsConnectionsAndGetsNoMore(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	server := c.startAPIServer()
	c.addNodes(c.nodes...)
	c.startFleet(c.announced())
	for _, node := range c.nodes {
		c.startPod(node)
	}
	first, second := podAddress("n1", 0), podAddress("n2", 0)
	c.setEndpoints(ready("n1", first), ready("n2", second))
	address := c.addService()
	c.awaitNodes(address, "n1", "n2")
	ended := c.downloads(address, "n1", "n2")
	c.setEndpoints(ready("n2", second))
	c.awaitNodes(address, "n2")
	server.end(syscall.SIGKILL)
	c.restartAPIServer()
	c.awaitAPIServer()
	c.setEndpoints(ready("n1", first)) // before ballast-kube and kube-proxy have found it again
	c.awaitNodes(address, "n1")
	ended()
}
