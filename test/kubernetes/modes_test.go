package kubernetes

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Promise: Agents are ready, `ballast doctor` finds no problem and connections outlive changes in front of kube-proxy in mode iptables as in mode nftables.
func TestConnectionsSurviveInFrontOfIptables(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("needs iptables:", err)
	}
	surviveInFrontOf(t, "iptables", "connections keep their cookies by entries per flow")
}

// Promise: The same in front of mode ipvs, where kube-proxy puts VIPs on an interface of nodes.
func TestConnectionsSurviveInFrontOfIPVS(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("needs the kernel's module ip_vs, and ipset: make test-kubernetes-ipvs has them:", err)
	}
	surviveInFrontOf(t, "ipvs")
}

func surviveInFrontOf(t *testing.T, mode string, wanted ...string) {
	c := newCluster(t, "n1", "n2")
	c.mode = mode
	c.startAPIServer()
	c.addNodes(c.nodes...)
	c.startController(c.announced())
	roles := map[string]map[string]*process{}
	for _, node := range c.nodes {
		roles[node] = c.startNode(node)
		c.startProxy(node)
		c.startPod(node)
	}
	c.startKube()
	first, second := podAddress("n1", 0), podAddress("n2", 0)
	c.setEndpoints(ready("n1", first), ready("n2", second))
	address := c.addService()
	c.awaitNodes(address, "n1", "n2")
	for _, node := range c.nodes {
		c.awaitReady(node, "agent")
		c.awaitReady(node, "lb")
		c.diagnose(node, "agent", append(wanted, "SYNs of the agent to tcp port 80")...)
	}
	ended := c.downloads(address, "n1", "n2")
	c.setEndpoints(ending("n1", first), ready("n2", second))
	c.awaitNodes(address, "n2")
	for _, node := range c.nodes {
		roles[node]["lb"].end(syscall.SIGKILL)
		c.startRole("lb", node)
		c.awaitReady(node, "lb")
	}
	c.setEndpoints(ready("n1", first), ready("n2", second))
	c.awaitNodes(address, "n1", "n2")
	ended()
}

// diagnose has doctor look at a role of a node: it finds no problem, and says what is wanted.
func (c *cluster) diagnose(node, role string, wanted ...string) {
	c.Helper()
	command := exec.Command(ballast, "doctor", "--instance", role, "--run-dir", c.path(node))
	var said output
	command.Stdout, command.Stderr = &said, &said
	c.must(c.spaces[node].Start(command))
	if err := command.Wait(); err != nil {
		c.Errorf("doctor of %s of %s: %v: %s", role, node, err, said.last())
	}
	for _, want := range wanted {
		if !strings.Contains(said.last(), want) {
			c.Errorf("doctor of %s of %s does not say %q: %s", role, node, want, said.last())
		}
	}
}
