package kubernetes

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A machine is a host with directories of its own where Ballast's packages and their users write, and without systemd: what a unit would start is
// started by the test, with the options that the unit reads.
type machine struct {
	*cluster
	name string
	pid  string // of the process that holds its mounts
}

// machine gives a host these directories.
func (c *cluster) machine(name string) *machine {
	dir := c.path(filepath.Join("machines", name))
	script := "set -e\n"
	for i, at := range []string{"/etc", "/var/lib"} { // over those of this machine, which stay as they are
		layer := filepath.Join(dir, strconv.Itoa(i))
		c.must(os.MkdirAll(filepath.Join(layer, "upper"), 0o755))
		c.must(os.MkdirAll(filepath.Join(layer, "work"), 0o755))
		script += fmt.Sprintf("mount -t overlay overlay -o lowerdir=%s,upperdir=%s/upper,workdir=%s/work %s\n", at, layer, layer, at)
	}
	script += "mount -t tmpfs -o mode=755 tmpfs /run\necho mounted\nexec sleep infinity\n"
	holder := c.start(name, "/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script)
	await.True(c, "the mounts of "+name, func() bool { return strings.Contains(holder.last(), "mounted") })
	return &machine{c, name, strconv.Itoa(holder.command.Process.Pid)}
}

func (m *machine) inside(line string) []string {
	environment := []string{"PATH=" + m.path("bin") + ":" + os.Getenv("PATH"), "KUBECONFIG=" + m.path("kubeconfig"), "HOME=" + m.path("home")}
	return append(append([]string{"/usr/bin/nsenter", "--target", m.pid, "--mount", "--wd=" + m.dir, "/usr/bin/env"}, environment...), "/bin/sh", "-ec", line)
}

// types runs a line in a shell of the machine to its end.
func (m *machine) types(line string) string {
	m.Helper()
	said := m.run(m.name, m.inside(line)...)
	m.Logf("%s# %s\n%s", m.name, line, said)
	return said
}

// unit starts what the unit of a role starts.
func (m *machine) unit(role string) *process {
	m.Helper()
	name := "ballast-" + role
	text, err := os.ReadFile("../../deploy/systemd/" + name + ".service")
	m.must(err)
	exec := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/(.*)$`).FindSubmatch(text)
	if exec == nil {
		m.Fatalf("%s.service has no ExecStart", name)
	}
	return m.start(m.name, m.inside("INSTANCE=default\n. /etc/default/"+name+"\nexec "+string(exec[1]))...)
}

// invited has a machine join by the line that an invitation prints.
func (m *machine) invited(role, invitation string) {
	m.Helper()
	line := regexp.MustCompile(`(?m)^\s*(ballast join .*)$`).FindStringSubmatch(invitation)
	if line == nil {
		m.Fatalf("the invitation has no command: %s", invitation)
	}
	m.types(line[1] + " --interface eth0")
	m.unit(role) // what it has attached goes with the host
}

// by are the commands of a section that are typed on a machine, with the addresses of this cluster.
func (c *cluster) by(heading string, block int, where string) (list []string) {
	c.Helper()
	here := ""
	for line := range strings.SplitSeq(strings.ReplaceAll(c.block(heading, block), "\\\n", ""), "\n") {
		if name, ok := strings.CutPrefix(line, "# "); ok {
			here = name
		} else if line != "" && here == where {
			list = append(list, strings.NewReplacer("10.0.0.21", controller, "10.0.1.1", nodeAddress("n1")).Replace(line))
		}
	}
	if len(list) == 0 {
		c.Fatalf("%s has no command for %s below %q", document, where, heading)
	}
	return list
}

// Promise: With a fleet outside of the cluster, the commands of docs/start/kubernetes.md end with an answer of the Service's address: an agent on each node,
// ballast-kube by its certificate and its account of the cluster.
func TestTheCommandsForLoadBalancersOutsideOfTheCluster(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	for _, program := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs util-linux:", err)
		}
	}
	c.authorization = "RBAC"
	c.startAPIServer()
	c.addNodes(c.nodes...)
	pods := c.startEndpoints() // what kube-controller-manager does
	for _, node := range c.nodes {
		c.startProxy(node)
		c.startPod(node)
	}
	pods.set("default", "web", appPod{"n1", podAddress("n1", 0)}, appPod{"n2", podAddress("n2", 0)})
	c.must(c.spaces["router"].Route(netip.MustParsePrefix("203.0.113.0/28"), 0, netspace.NextHop{Interface: "fabric"})) // the load balancers announce by ARP here
	c.atHand()
	c1 := c.machine("control")
	c1.types("ballast controller init --name c1 --address " + controller)
	c1.unit("controller")
	await.Nil(t, "the controller leads", func() error {
		command := exec.Command("/bin/true")
		line := c1.inside("ballast ctl --instance c1 status && ballast ctl --instance c1 pki delegate /etc/ballast/authority")
		command.Path, command.Args = line[0], line
		var said output
		command.Stdout, command.Stderr = &said, &said
		if err := c.spaces["control"].Start(command); err != nil {
			return err
		}
		if err := command.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, said.last())
		}
		return nil
	})
	fleet := "services: []\nnodes:\n"
	for i, name := range []string{"lb1", "lb2"} {
		address := fmt.Sprintf("10.60.0.5%d", i+1)
		c.join(name, address+"/24")
		c.machine(name).invited("lb", c1.types("ballast ctl --instance c1 node invite lb --name "+name+" --address "+address))
		fleet += fmt.Sprintf("  - {name: %s, l2: {interface: eth0}}\n", name)
	}
	c.write("fleet.yaml", fleet)
	c1.types("ballast ctl --instance c1 apply -f fleet.yaml --yes")

	for _, node := range c.nodes {
		for _, line := range c.by("## 1. An agent on each node", 0, "c1") {
			line = strings.ReplaceAll(strings.ReplaceAll(line, "n1", node), nodeAddress("n1"), nodeAddress(node))
			c.machine(node).invited("agent", c1.types(line))
		}
	}
	for _, where := range []string{"c1", "admin"} { // both on one host here
		for _, line := range c.by("## 2. ballast-kube", 0, where) {
			c1.types(line)
		}
	}
	// The account of the cluster, and no other, is what ballast-kube has.
	account := strings.TrimSpace(c1.types("kubectl --namespace ballast create token ballast-kube"))
	text, err := os.ReadFile(c.path("kubeconfig"))
	c.must(err)
	c.write("account", strings.ReplaceAll(string(text), "{token: "+token+"}", "{token: "+account+"}"))
	c1.types("cp /etc/ballast/authority/kube.crt /etc/ballast/authority/kube.key /etc/ballast/tls/")
	started := strings.Join(commands(c.block("## 2. ballast-kube", 1)), "\n")
	started = strings.NewReplacer("10.0.0.21", controller, "--kubeconfig kubeconfig", "--kubeconfig account").Replace(started)
	c.start("control", c1.inside("exec "+started)...)

	c.write("service.yaml", c.block("## 3. A Service", 0))
	c1.types("kubectl apply -f service.yaml")
	c.awaitNodes(c.awaitAddress(), c.nodes...)
	for _, where := range []string{"admin", "c1"} {
		for _, line := range c.by("## 3. A Service", 1, where) {
			if said := c1.types(line); where == "c1" && (!strings.Contains(said, "n1") || !strings.Contains(said, "n2")) {
				t.Errorf("%s: %s", line, said)
			}
		}
	}
}
