package kubernetes

import (
	"syscall"
	"testing"
)

// Situations that users of others have reported in public, each as small as it can be. The rest of them are steps of
// TestARolloutOfAllNodesBreaksNoConnection.

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
