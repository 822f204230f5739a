// Package kubernetes shows that Services of a real API server and kube-proxy are balanced: make test-kubernetes builds and runs it, as root.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	ballast = "../../bin/ballast"
	kube    = "../../bin/ballast-kube"
	parts   = "../../bin/cluster" // of Kubernetes: test/kubernetes/cluster

	apiServer  = "https://10.60.0.20:7443"
	controller = "10.60.0.20"
	pool       = "10.60.0.96/29"
	token      = "test"
	classOfUs  = "ballast.io/l4"
)

// A cluster is a client behind a router, nodes on a bridge of it with a host of pods each, and a host with the API server, a controller and ballast-kube:
//
//	client ---- router ==(bridge)== n1 -- p1, n2 -- p2, control
type cluster struct {
	*testing.T
	dir   string
	nodes []string // n1 to n9
	mode  string   // of kube-proxy
	pool  string   // of ballast-kube

	authorization string // of the API server
	spaces        map[string]*netspace.Space
	wire          *link.Wire
	*kubernetes.Clientset
}

func newCluster(t *testing.T, nodes ...string) *cluster {
	for _, binary := range []string{ballast, kube, parts} {
		if _, err := os.Stat(binary); err != nil {
			t.Skip("make test-kubernetes builds what this needs, and runs it as root")
		}
	}
	c := &cluster{T: t, dir: t.TempDir(), mode: "nftables", pool: pool, authorization: "AlwaysAllow", spaces: map[string]*netspace.Space{}}
	var err error
	c.wire, err = link.Load()
	c.must(err)
	t.Cleanup(func() { c.wire.Close() })
	router := c.space("router")
	c.must(router.AddBridge("fabric", 1600, netip.MustParsePrefix("10.60.0.1/24")))
	c.must(netspace.Connect(
		netspace.End{Space: c.space("client"), Interface: "eth0", MTU: 1500, Addresses: prefixes("10.61.0.2/24")},
		netspace.End{Space: router, Interface: "clients", MTU: 1500, Addresses: prefixes("10.61.0.1/24")}))
	c.route("client", "10.61.0.1")
	c.join("control", "10.60.0.20/24")
	for _, node := range nodes {
		c.addMachine(node)
	}
	return c
}

// addMachine connects a node and its pods.
func (c *cluster) addMachine(node string) {
	c.nodes = append(c.nodes, node)
	c.join(node, nodeAddress(node)+"/24")
	pods := podsOf(node)
	gateway := "10.78." + node[1:] + ".1"
	c.must(netspace.Connect(netspace.End{Space: c.space(pods), Interface: "eth0", MTU: 1500, Addresses: prefixes(podAddress(node, 0) + "/24")},
		netspace.End{Space: c.spaces[node], Interface: "pod", MTU: 1500, Addresses: prefixes(gateway + "/24")}))
	c.route(pods, gateway)
	c.must(c.spaces["router"].Route(netip.MustParsePrefix("10.78."+node[1:]+".0/24"), 0, netspace.NextHop{Gateway: netip.MustParseAddr(nodeAddress(node)), Interface: "fabric"}))
}

func podsOf(node string) string                { return "p" + node[1:] }
func nodeAddress(node string) string           { return "10.60.0.1" + node[1:] }
func podAddress(node string, count int) string { return fmt.Sprintf("10.78.%s.%d", node[1:], 2+count) }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) space(name string) *netspace.Space {
	space, err := netspace.CreateUnnamed()
	c.must(err)
	c.Cleanup(space.Close)
	c.spaces[name] = space
	for key, value := range map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0", "net.ipv4.conf.all.arp_ignore": "1",
		"net.ipv6.conf.default.accept_dad": "0",
	} {
		c.must(space.Sysctl(key, value))
	}
	c.must(space.ReceiveOn(netspace.AllCPUs()))
	return space
}

// join connects a host to the bridge. The bridge's port has a program, too: veth sends nothing out of XDP to a peer without.
func (c *cluster) join(name, address string) {
	router := c.spaces["router"]
	c.must(netspace.Connect(netspace.End{Space: c.space(name), Interface: "eth0", MTU: 1600, Addresses: prefixes(address)},
		netspace.End{Space: router, Interface: name, MTU: 1600, Bridge: "fabric"}))
	c.must(router.AttachXDP(name, c.wire.PassFD()))
	c.route(name, "10.60.0.1")
}

func (c *cluster) route(name, gateway string) {
	c.must(c.spaces[name].Route(netip.MustParsePrefix("0.0.0.0/0"), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth0"}))
}

// output is what a process says.
type output struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.text.Write(b)
}

// last is the end of it.
func (o *output) last() string {
	o.lock.Lock()
	defer o.lock.Unlock()
	text := o.text.Bytes()
	return string(text[max(0, len(text)-3000):])
}

// A process runs on a host until it is killed, at the end of the test at the latest.
type process struct {
	*output
	command *exec.Cmd
	ended   chan struct{}
	where   string
}

func (c *cluster) start(host string, arguments ...string) *process {
	c.Helper()
	return c.startWith(nil, host, arguments...)
}

// startWith is start with more environment.
func (c *cluster) startWith(environment []string, host string, arguments ...string) *process {
	c.Helper()
	p := &process{output: &output{}, command: exec.Command(arguments[0], arguments[1:]...), ended: make(chan struct{}), where: host}
	p.command.Stdout, p.command.Stderr, p.command.Env = p.output, p.output, append(os.Environ(), environment...)
	p.command.Dir = c.dir
	p.command.Path, _ = filepath.Abs(arguments[0])
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.must(c.spaces[host].Start(p.command))
	go func() {
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	c.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if c.Failed() {
			c.Logf("%s of %s: %s", strings.Join(append([]string{filepath.Base(arguments[0])}, arguments[1:]...)[:min(2, len(arguments))], " "), host, p.last())
		}
	})
	return p
}

func (p *process) end(signal syscall.Signal) {
	_ = p.command.Process.Signal(signal)
	<-p.ended
}

// run runs a command on a host to its end.
func (c *cluster) run(host string, arguments ...string) string {
	c.Helper()
	var said output
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdout, command.Stderr = &said, &said
	c.must(c.spaces[host].Start(command))
	if err := command.Wait(); err != nil {
		c.Fatalf("%v on %s: %v: %s", arguments, host, err, said.last())
	}
	return said.last()
}

// dial connects from a host.
func (c *cluster) dial(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (connection net.Conn, err error) {
		err = c.spaces[host].Do(func() error {
			connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return connection, err
	}
}

// startAPIServer starts etcd and the API server.
func (c *cluster) startAPIServer() *process {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c.must(err)
	private, err := x509.MarshalECPrivateKey(key)
	c.must(err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	c.must(err)
	c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	c.write("sa.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	c.write("tokens.csv", token+`,admin,1,"system:masters"`+"\n")
	c.write("kubeconfig", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: "`+apiServer+`", insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: `+token+`}}]}`)
	c.start("control", parts, "etcd", "--data-dir", c.path("etcd"), "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error")
	server := c.restartAPIServer()
	c.Clientset, err = kubernetes.NewForConfig(c.config())
	c.must(err)
	c.awaitAPIServer()
	return server
}

func (c *cluster) awaitAPIServer() {
	await.Nil(c, "the API server is ready", func() error {
		_, err := c.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
		return err
	})
}

// config is how the test reaches the API server.
func (c *cluster) config() *rest.Config {
	return &rest.Config{Host: apiServer, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: c.dial("control"), QPS: 1000, Burst: 1000, Timeout: 20 * time.Second}
}

func (c *cluster) restartAPIServer() *process {
	return c.start("control", parts, "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--service-cluster-ip-range", "10.96.0.0/16",
		"--bind-address", controller, "--advertise-address", controller, "--secure-port", "7443", "--cert-dir", c.path("certs"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", c.path("sa.pub"), "--service-account-signing-key-file", c.path("sa.key"),
		"--authorization-mode", c.authorization, "--token-auth-file", c.path("tokens.csv"), "--disable-admission-plugins", "ServiceAccount")
}

// startFleet starts a controller, ballast-kube, and on each node kube-proxy and both roles of Ballast. fleet is what an operator sets beforehand.
func (c *cluster) startFleet(fleet string) {
	c.startController(fleet)
	for _, node := range c.nodes {
		c.startNode(node)
		c.startProxy(node)
	}
	c.startKube()
}

func (c *cluster) startController(fleet string) {
	c.run("control", ballast, "ctl", "pki", "init", c.path("tls"))
	c.issue("controller", "c1", controller)
	c.issue("source", "kube", controller)
	c.start("control", ballast, "controller", "--name", "c1", "--tls-dir", c.path("tls"), "--data-dir", c.path("controller"), "--run-dir", c.path("control"), "--listen", controller+":6443")
	c.write("fleet.yaml", fleet)
	await.Nil(c, "the controller leads", func() error {
		_, err := c.client("control", "c1").Status(context.Background())
		return err
	})
	await.Nil(c, "the fleet is applied", func() error {
		command := exec.Command(ballast, "ctl", "apply", "--yes", "--instance", "c1", "--run-dir", c.path("control"), "-f", c.path("fleet.yaml"))
		if text, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	})
}

// announced is a fleet whose nodes announce VIPs by ARP.
func (c *cluster) announced() string {
	fleet := "services: []\nnodes:\n"
	for _, node := range c.nodes {
		fleet += fmt.Sprintf("  - {name: %s-lb, l2: {interface: eth0}}\n", node)
	}
	return fleet
}

func (c *cluster) issue(role, name, address string) {
	c.run("control", ballast, "ctl", "pki", "issue", c.path("tls"), role, name, "--address", address)
}

// startNode starts both roles on a node.
func (c *cluster) startNode(node string) (roles map[string]*process) {
	c.issue("lb", node+"-lb", nodeAddress(node))
	c.issue("agent", node, nodeAddress(node))
	roles = map[string]*process{}
	for _, role := range []string{"lb", "agent"} {
		detach := []string{ballast, role, "--detach", "--instance", role, "--run-dir", c.path(node)}
		if role == "agent" { // connections of the test may be left
			detach = append(detach, "--yes")
		}
		c.Cleanup(func() { c.run(node, detach...) })
		roles[role] = c.startRole(role, node)
	}
	return roles
}

func (c *cluster) startProxy(node string) *process {
	return c.start(node, parts, "kube-proxy", "--kubeconfig", c.path("kubeconfig"), "--proxy-mode", c.mode, "--hostname-override", node, "--cluster-cidr", "10.78.0.0/16", "--ipvs-strict-arp",
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")
}

func (c *cluster) startKube() *process {
	return c.start("control", kube, "--controller", controller, "--pool", c.pool, "--kubeconfig", c.path("kubeconfig"), "--tls-dir", c.path("tls"), "--lease-namespace", "default",
		"--identity", "one", "--listen", "127.0.0.1:9438")
}

// startRole starts a daemon of a node.
func (c *cluster) startRole(role, node string) *process {
	name := node
	if role == "lb" {
		name += "-lb"
	}
	return c.start(node, ballast, role, "--name", name, "--tls-dir", c.path("tls"), "--controller", controller, "--instance", role, "--interface", "eth0",
		"--run-dir", c.path(node), "--state-dir", c.path(node+"-"+role))
}

func (c *cluster) path(name string) string {
	path, err := filepath.Abs(filepath.Join(c.dir, name))
	c.must(err)
	return path
}

func (c *cluster) write(name, text string) { c.must(os.WriteFile(c.path(name), []byte(text), 0o600)) }

func (c *cluster) client(host, instance string) *api.Client {
	return api.NewClient(api.SocketPath(c.path(host), instance))
}

// startPod serves pages that last, on port 8080 of a node's pod.
func (c *cluster) startPod(node string) {
	var listener net.Listener
	c.must(c.spaces[podsOf(node)].Do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Node", node)
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		w.Header().Set("Client", host)
		c.stream(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	c.Cleanup(func() { _ = server.Close() })
}
