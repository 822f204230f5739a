package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	helm      = "../../bin/helm"
	chart     = "../../deploy/kubernetes/chart"
	namespace = "ballast"
)

// install installs the chart by Helm, and runs the pods of its templates.
func (c *cluster) install(values ...string) *release {
	arguments := []string{helm, "install", "ballast", chart, "--namespace", namespace, "--create-namespace", "--kubeconfig", c.path("kubeconfig")}
	for _, value := range values {
		arguments = append(arguments, "--set", value)
	}
	c.run("control", arguments...)
	return c.runRelease()
}

// runRelease runs what a kubelet, a scheduler and the controllers of workloads would of the chart that is installed.
func (c *cluster) runRelease() *release {
	r := &release{kubelet: kubelet{cluster: c, namespace: namespace}, pods: map[string]*runningPod{}}
	sets, err := c.AppsV1().StatefulSets(namespace).Get(background, "ballast-controller", meta.GetOptions{})
	c.must(err)
	for i := range int(*sets.Spec.Replicas) {
		name := fmt.Sprintf("%s-%d", sets.Name, i)
		r.hosts += fmt.Sprintf("10.60.0.3%d %s.%s.%s.svc\n", i, name, sets.Spec.ServiceName, namespace)
	}
	for i := range int(*sets.Spec.Replicas) {
		pod := sets.Spec.Template.DeepCopy()
		for _, claim := range sets.Spec.VolumeClaimTemplates {
			pod.Spec.Volumes = append(pod.Spec.Volumes, core.Volume{Name: claim.Name, VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}})
		}
		r.add(pod, fmt.Sprintf("%s-%d", sets.Name, i), fmt.Sprintf("10.60.0.3%d", i))
	}
	deployment, err := c.AppsV1().Deployments(namespace).Get(background, "ballast-kube", meta.GetOptions{})
	c.must(err)
	for i := range int(*deployment.Spec.Replicas) {
		r.add(&deployment.Spec.Template, fmt.Sprintf("%s-%d", deployment.Name, i), fmt.Sprintf("10.60.0.4%d", i))
	}
	for _, node := range c.nodes {
		r.prepare(node)
		r.startNode(node)
	}
	return r
}

// A release is the chart in a cluster.
type release struct {
	kubelet
	pods map[string]*runningPod
}

// add runs a pod with an address of its own.
func (r *release) add(template *core.PodTemplateSpec, name, address string) {
	space := "pod" + address[strings.LastIndexByte(address, '.'):]
	r.join(space, address+"/24")
	r.pods[name] = r.kubelet.run(&core.Pod{ObjectMeta: meta.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}, space, r.nodes[0], address)
}

// prepare gives a node the file system that systemd mounts.
func (r *release) prepare(node string) {
	path := r.cluster.path(filepath.Join("hosts", node, "sys/fs/bpf"))
	r.must(os.MkdirAll(path, 0o755))
	r.must(unix.Mount("bpf", path, "bpf", 0, "mode=0700"))
	r.Cleanup(func() { r.must(unix.Unmount(path, unix.MNT_DETACH)) })
}

// startNode runs the pod of a node.
func (r *release) startNode(node string) *runningPod {
	daemons, err := r.AppsV1().DaemonSets(namespace).Get(background, "ballast-node", meta.GetOptions{})
	r.must(err)
	template := &daemons.Spec.Template
	pod := r.kubelet.run(&core.Pod{ObjectMeta: meta.ObjectMeta{GenerateName: daemons.Name + "-", Labels: maps.Clone(template.Labels)}, Spec: template.Spec}, node, node, nodeAddress(node))
	r.pods[node] = pod
	return pod
}

// Promise: From a cluster without Ballast, the chart's objects are enough for a Service to answer, its account's rights included; a node's pod is
// replaced, and no connection breaks.
func TestTheChartMakesAServiceAnswer(t *testing.T) {
	if _, err := os.Stat(helm); err != nil {
		t.Skip("make test-kubernetes builds what this needs, and runs it as root")
	}
	c := newCluster(t, "n1", "n2")
	c.authorization = "RBAC"
	c.startAPIServer()
	c.addNodes("n1", "n2")
	for _, node := range c.nodes {
		c.startProxy(node)
		c.startPod(node)
	}
	begun := time.Now()
	r := c.install("vips="+pool, "l2.interface=eth0", "controller.replicas=1", "kube.replicas=1")
	address := c.addService()
	c.setEndpoints(ready("n1", podAddress("n1", 0)), ready("n2", podAddress("n2", 0)))
	c.awaitNodes(address, "n1", "n2")
	t.Logf("the Service answers %v after the install began", time.Since(begun).Round(time.Millisecond))
	for _, name := range slices.Sorted(maps.Keys(r.pods)) {
		r.pods[name].awaitReady()
	}
	ended := c.downloads(address, "n1", "n2")
	for _, node := range c.nodes {
		t.Logf("the pod of %s is replaced", node)
		r.pods[node].stop()
		r.startNode(node).awaitReady()
	}
	c.awaitNodes(address, "n1", "n2")
	ended()
}
