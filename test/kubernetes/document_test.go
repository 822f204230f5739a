package kubernetes

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const document = "docs/start/kubernetes.md"

// inTime is how long an operator waits for the first answer, from the first command on.
const inTime = time.Minute

// block is the code of a section of the document, of its number.
func (c *cluster) block(heading string, number int) string {
	c.Helper()
	text, err := os.ReadFile(filepath.Join("../..", document))
	c.must(err)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllStringSubmatch(section, -1)
	if !found || len(blocks) <= number {
		c.Fatalf("%s has no block %d below %q", document, number, heading)
	}
	return blocks[number][1]
}

// commands are those of a block, each as a shell gets it.
func commands(block string) (list []string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(block, "\\\n", ""), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list
}

// atHand gives a shell on the host control what somebody has who follows the document: this repository, kubectl and helm.
func (c *cluster) atHand() {
	c.must(os.Mkdir(c.path("bin"), 0o755))
	for name, program := range map[string]string{"kubectl": parts, "helm": helm, "ballast": ballast, "ballast-kube": kube} {
		target, err := filepath.Abs(program)
		c.must(err)
		c.must(os.Symlink(target, c.path("bin/"+name)))
	}
	repository, err := filepath.Abs("../..")
	c.must(err)
	c.must(os.Symlink(filepath.Join(repository, "deploy"), c.path("deploy")))
}

// shell runs a line there.
func (c *cluster) shell(line string) (string, error) {
	var said output
	command := exec.Command("/bin/sh", "-ec", line)
	command.Env = append(os.Environ(), "PATH="+c.path("bin")+":"+os.Getenv("PATH"), "KUBECONFIG="+c.path("kubeconfig"), "HOME="+c.path("home"))
	command.Dir, command.Stdout, command.Stderr = c.dir, &said, &said
	c.must(c.spaces["control"].Start(command))
	err := command.Wait()
	return said.last(), err
}

// Promise: The commands of docs/start/kubernetes.md, typed one after the other into a cluster without Ballast, end with an answer of the Service's address
// within a minute.
func TestTheFiveCommandsOfTheDocument(t *testing.T) {
	if _, err := os.Stat(helm); err != nil {
		t.Skip("make test-kubernetes builds what this needs, and runs it as root")
	}
	c := newCluster(t, "n1", "n2")
	c.authorization = "RBAC"
	c.startAPIServer()
	c.addNodes(c.nodes...)
	pods := c.startEndpoints() // what kube-controller-manager does
	for _, node := range c.nodes {
		c.startProxy(node)
		c.startPod(node)
	}
	pods.set("default", "web", appPod{"n1", podAddress("n1", 0)}, appPod{"n2", podAddress("n2", 0)})
	c.must(c.spaces["router"].Route(netip.MustParsePrefix("203.0.113.0/28"), 0, netspace.NextHop{Interface: "fabric"})) // of the nodes' network, as the document has it
	c.atHand()
	c.write("service.yaml", c.block("## 3. A Service", 0))
	typed := commands(c.block("## In the cluster", 0))
	begun := time.Now()
	asked, address := typed[len(typed)-1], ""
	for _, line := range typed[:len(typed)-1] {
		said, err := c.shell(line)
		t.Logf("%5.1f s $ %s\n%s", time.Since(begun).Seconds(), line, said)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if strings.HasPrefix(line, "helm install") {
			c.runRelease()
		}
	}
	said := ""
	await.Nil(t, "EXTERNAL-IP", func() (err error) {
		if said, err = c.shell(asked); err != nil {
			return fmt.Errorf("%s: %w: %s", asked, err, said)
		}
		lines := strings.Split(said, "\n")
		at := slices.Index(strings.Fields(lines[0]), "EXTERNAL-IP")
		if at < 0 || net.ParseIP(strings.Fields(lines[1])[at]) == nil {
			return fmt.Errorf("%s: %s; events: %s", asked, said, c.events())
		}
		address = strings.Fields(lines[1])[at]
		return nil
	})
	t.Logf("%5.1f s $ %s\n%s", time.Since(begun).Seconds(), asked, said)
	await.Nil(t, "an answer", func() error {
		_, body, err := c.get("http://" + net.JoinHostPort(address, "80") + "/")
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = io.Copy(io.Discard, body)
		return err
	})
	took := time.Since(begun)
	if t.Logf("%s answers %.1f s after the first command", address, took.Seconds()); took > inTime {
		t.Errorf("an answer took %v", took)
	}
	c.awaitNodes(address, c.nodes...)
	// What helm says after the install.
	status, err := c.shell("helm status ballast --namespace ballast")
	c.must(err)
	for _, wanted := range []string{"rollout status daemonset ballast-node", "exec ballast-controller-0 -c controller -- ballast ctl --instance ballast-controller-0 service list"} {
		if !strings.Contains(status, wanted) {
			t.Errorf("helm status does not say %q: %s", wanted, status)
		}
	}
}
