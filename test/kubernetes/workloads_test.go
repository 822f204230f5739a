package kubernetes

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// echo is the server that backends of the conformance suite are.
const echo = "../../bin/echo-basic"

// workloads are the cluster's controller of Deployments and the nodes' kubelets, for pods of one container that is echo or a DNS server: each pod has a
// host of its own behind a node.
type workloads struct {
	*endpoints
	changes chan change
	running map[string][]*workload // by namespace and name of their Deployment
	count   int                    // pods that there have been
	waiting []*apps.Deployment     // for their Secrets
}

// change is of a Deployment: it is there, or gone.
type change struct {
	*apps.Deployment
	gone bool
}

// workload is one pod.
type workload struct {
	appPod
	name    string
	process *process // nil: it is of the test's process
	socket  net.PacketConn
}

func (c *cluster) startWorkloads() *workloads {
	w := &workloads{endpoints: c.startEndpoints(), changes: make(chan change, 1000), running: map[string][]*workload{}}
	factory := informers.NewSharedInformerFactory(c.Clientset, 0)
	_, err := factory.Apps().V1().Deployments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(d any) { w.changes <- change{d.(*apps.Deployment), false} },
		DeleteFunc: func(d any) {
			if unknown, ok := d.(cache.DeletedFinalStateUnknown); ok {
				d = unknown.Obj
			}
			w.changes <- change{d.(*apps.Deployment), true}
		}})
	c.must(err)
	stop := make(chan struct{})
	factory.Start(stop)
	c.Cleanup(func() { close(stop); factory.Shutdown() })
	return w
}

// work runs pods until a process ends.
func (w *workloads) work(until *process) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-until.ended:
			return
		case <-again.C:
			waiting := w.waiting
			w.waiting = nil
			for _, d := range waiting {
				w.start(d)
			}
		case c := <-w.changes:
			if c.gone {
				w.stop(c.Deployment)
			} else {
				w.start(c.Deployment)
			}
		}
	}
}

func (w *workloads) start(d *apps.Deployment) {
	files, ok := w.files(d)
	if !ok {
		w.waiting = append(w.waiting, d)
		return
	}
	replicas := 1
	if d.Spec.Replicas != nil {
		replicas = int(*d.Spec.Replicas)
	}
	var pods []appPod
	key := d.Namespace + "/" + d.Name
	for i := range replicas {
		pod := w.run(d, fmt.Sprintf("%s-0-%d", d.Name, i), files)
		w.running[key] = append(w.running[key], pod)
		pods = append(pods, pod.appPod)
	}
	w.set(d.Namespace, d.Spec.Template.Labels["app"], pods...)
}

// files are where the files of a Deployment's Secret are; false: there is none yet.
func (w *workloads) files(d *apps.Deployment) (dir string, ok bool) {
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		secret, err := w.CoreV1().Secrets(d.Namespace).Get(background, v.Secret.SecretName, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", false
		}
		w.must(err)
		dir = w.path(filepath.Join("secrets", d.Namespace, d.Name))
		files := map[string][]byte{}
		for _, item := range v.Secret.Items {
			files[item.Path] = secret.Data[item.Key]
		}
		w.must(lay(dir, files, 0o600, 0))
	}
	return dir, true
}

// run runs a pod behind the node whose turn it is, and makes the API server know it.
func (w *workloads) run(d *apps.Deployment, name, files string) *workload {
	node := w.nodes[w.count%len(w.nodes)]
	w.count++
	net4 := 4 * (1 + w.count/len(w.nodes)) // the nodes' first pods are of no Deployment
	gateway, address := fmt.Sprintf("10.78.%s.%d", node[1:], net4+1), fmt.Sprintf("10.78.%s.%d", node[1:], net4+2)
	host := d.Namespace + "/" + name
	w.must(netspace.Connect(netspace.End{Space: w.space(host), Interface: "eth0", MTU: 1500, Addresses: prefixes(address + "/30")},
		netspace.End{Space: w.spaces[node], Interface: fmt.Sprintf("pod%d", w.count), MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix(gateway + "/30")}}))
	w.route(host, gateway)
	pod := &workload{appPod: appPod{node, address}, name: name}
	spec := d.Spec.Template.Spec
	if strings.Contains(spec.Containers[0].Image, "coredns") {
		pod.socket = w.serveNames(host)
	} else {
		pod.process = w.startWith(environment(d.Namespace, name, files, &spec.Containers[0]), host, echo)
	}
	spec.NodeName = node
	made, err := w.CoreV1().Pods(d.Namespace).Create(background, &core.Pod{ObjectMeta: meta.ObjectMeta{Name: name, Labels: d.Spec.Template.Labels}, Spec: spec}, meta.CreateOptions{})
	w.must(err)
	made.Status = core.PodStatus{Phase: core.PodRunning, PodIP: address, PodIPs: []core.PodIP{{IP: address}}, Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}}
	_, err = w.CoreV1().Pods(d.Namespace).UpdateStatus(background, made, meta.UpdateOptions{})
	w.must(err)
	return pod
}

func environment(namespace, name, files string, spec *core.Container) (list []string) {
	for _, v := range spec.Env {
		value := v.Value
		if v.ValueFrom != nil {
			value = map[string]string{"metadata.name": name, "metadata.namespace": namespace}[v.ValueFrom.FieldRef.FieldPath]
		}
		for _, mount := range spec.VolumeMounts {
			value = strings.Replace(value, mount.MountPath, files, 1)
		}
		list = append(list, v.Name+"="+value)
	}
	return list
}

// serveNames answers each question for an address with the client's.
func (w *workloads) serveNames(host string) (socket net.PacketConn) {
	w.must(w.spaces[host].Do(func() (err error) {
		socket, err = net.ListenPacket("udp", ":53")
		return err
	}))
	server := &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(func(out dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg).SetReply(question)
		client, _, _ := net.SplitHostPort(out.RemoteAddr().String())
		answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: question.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(client)}}
		_ = out.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	w.Cleanup(func() { _ = socket.Close() })
	return socket
}

func (w *workloads) stop(d *apps.Deployment) {
	key := d.Namespace + "/" + d.Name
	w.set(d.Namespace, d.Spec.Template.Labels["app"])
	for _, pod := range w.running[key] {
		if pod.process != nil {
			pod.process.end(syscall.SIGKILL)
		} else {
			_ = pod.socket.Close()
		}
		w.must(w.CoreV1().Pods(d.Namespace).Delete(background, pod.name, meta.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
	delete(w.running, key)
}

// missing reports whether a file that make test-kubernetes builds is not there.
func missing(files ...string) bool {
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return true
		}
	}
	return false
}
