package comparison

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// kubeProxy is that of Kubernetes in nftables mode on two nodes that have no pods, with externalTrafficPolicy: Cluster. An API server runs beside the
// router.
func kubeProxy() Contender {
	return Contender{
		Name: "kube-proxy", About: "kube-proxy in nftables mode on two nodes, externalTrafficPolicy: Cluster, by an API server", Balancers: 2,
		Possible: func() error {
			if _, err := os.Stat(kubernetes()); err != nil {
				return fmt.Errorf("%s is not built: make test-kubernetes builds it, for 6 minutes", kubernetes())
			}
			return nil
		},
		Version: func(string) []string { return []string{kubernetes(), "kube-proxy", "--version"} },
		New:     func(t *world.Trial) Balancing { return &kubernetesNodes{t: t, running: map[int]*host.Process{}} },
	}
}

// kubernetes is the program of test/kubernetes/cluster, beside this one.
func kubernetes() string {
	self, err := os.Executable()
	if err != nil {
		return "cluster"
	}
	return filepath.Join(filepath.Dir(self), "cluster")
}

const (
	apiServer = "https://10.30.0.254:7443" // the router's address on the fabric
	apiToken  = "comparison"
)

type kubernetesNodes struct {
	t       *world.Trial
	dir     string
	client  *http.Client
	running map[int]*host.Process
}

func (k *kubernetesNodes) Start(pool []State) {
	k.dir = filepath.Join(k.t.Lab.NodeDir(world.RouterNode), "kubernetes")
	script.Check(os.MkdirAll(k.dir, 0o755))
	k.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: k.dial}, Timeout: 20 * time.Second}
	k.startAPIServer()
	for i := 1; i <= k.t.Network.LBs; i++ {
		name := world.LBName(i)
		k.put(http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": name}})
		k.put(http.MethodPatch, "/api/v1/nodes/"+name+"/status", object{"status": object{
			"addresses": []object{{"type": "InternalIP", "address": world.FabricAddress(i).String()}}, "conditions": []object{{"type": "Ready", "status": "True"}}}})
	}
	k.put(http.MethodPost, "/api/v1/namespaces/default/services", object{"metadata": object{"name": "web"}, "spec": object{"type": "LoadBalancer", "loadBalancerClass": "lab/router",
		"allocateLoadBalancerNodePorts": false, "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}})
	k.put(http.MethodPatch, "/api/v1/namespaces/default/services/web/status", object{"status": object{"loadBalancer": object{"ingress": []object{{"ip": vip}}}}})
	k.put(http.MethodPost, endpointSlices, k.endpoints(pool))
	for i := 1; i <= k.t.Network.LBs; i++ {
		script.Check(k.t.Lab.Space(world.LBName(i)).Sysctl("net.ipv4.ip_forward", "1"))
		k.Boot(i)
	}
}

// dial reaches the API server, which is on the router's network.
func (k *kubernetesNodes) dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	err = k.t.Lab.Space(world.RouterNode).Do(func() error {
		connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

func (k *kubernetesNodes) startAPIServer() {
	key := script.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	for name, text := range map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: script.Must(x509.MarshalECPrivateKey(key))}),
		"sa.pub":     pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: script.Must(x509.MarshalPKIXPublicKey(&key.PublicKey))}),
		"tokens.csv": []byte(apiToken + `,admin,1,"system:masters"` + "\n"),
		"kubeconfig": fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: %s}}]}`, apiServer, apiToken),
	} {
		script.Check(os.WriteFile(filepath.Join(k.dir, name), text, 0o600))
	}
	path := func(name string) string { return filepath.Join(k.dir, name) }
	const store, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	k.start(world.RouterNode, "etcd", "--data-dir", path("etcd"), "--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers, "--log-level", "error")
	server := k.start(world.RouterNode, "kube-apiserver", "--etcd-servers", store, "--service-cluster-ip-range", "10.96.0.0/16", "--bind-address", "10.30.0.254",
		"--advertise-address", "10.30.0.254", "--secure-port", "7443", "--cert-dir", path("certs"), "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", path("sa.pub"), "--service-account-signing-key-file", path("sa.key"), "--authorization-mode", "AlwaysAllow",
		"--token-auth-file", path("tokens.csv"), "--disable-admission-plugins", "ServiceAccount")
	server.Await("the API server is ready", func() error { return k.ask(http.MethodGet, "/readyz", nil) })
	server.Await("the API server has its namespace", func() error { return k.ask(http.MethodGet, "/api/v1/namespaces/default", nil) })
}

func (k *kubernetesNodes) start(node string, arguments ...string) *host.Process {
	return script.Must(k.t.Lab.Start(host.Spawn{Node: node, Program: kubernetes(), Arguments: arguments}))
}

// object is one of the API server's.
type object map[string]any

const endpointSlices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

// endpoints are the servers: what drains is terminating.
func (k *kubernetesNodes) endpoints(pool []State) object {
	list := []object{}
	for i, state := range pool {
		if state != Absent {
			list = append(list, object{"addresses": []string{serverAddress(k.t, i+1).String()},
				"conditions": object{"ready": state == Active, "serving": true, "terminating": state == Draining}})
		}
	}
	return object{"metadata": object{"name": "web", "labels": object{"kubernetes.io/service-name": "web"}}, "addressType": "IPv4", "endpoints": list,
		"ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}
}

func (k *kubernetesNodes) put(method, path string, what object) {
	script.Check(k.ask(method, path, what))
}

func (k *kubernetesNodes) ask(method, path string, what object) error {
	body := []byte{}
	if what != nil {
		body = script.Must(json.Marshal(what))
	}
	request, err := http.NewRequestWithContext(k.t.Context, method, apiServer+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+apiToken)
	request.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == http.MethodPatch])
	response, err := k.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return err
}

func (k *kubernetesNodes) Change(pool []State) {
	k.put(http.MethodPut, endpointSlices+"/web", k.endpoints(pool))
}

// Boot waits until the node takes connections for the VIP.
func (k *kubernetesNodes) Boot(i int) {
	node := world.LBName(i)
	k.running[i] = k.start(node, "kube-proxy", "--kubeconfig", filepath.Join(k.dir, "kubeconfig"), "--proxy-mode", "nftables", "--hostname-override", node,
		"--cluster-cidr", "10.78.0.0/16", "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")
	k.running[i].AwaitPort(target)
}

// Kill takes what the node's kernel had with it.
func (k *kubernetesNodes) Kill(i int) {
	k.running[i].Kill()
	delete(k.running, i)
	node := world.LBName(i)
	script.Check(k.t.Lab.Run(node, "", "nft", "flush", "ruleset"))
	script.Checkf(k.t.Lab.Space(node).Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }), "forget the connections of %s", node)
}

func (k *kubernetesNodes) Restart(i int) {
	stopWithin(k.t, k.running[i], await.Deadline, syscall.SIGTERM)
	k.Boot(i)
}

// Reload is what a rollout of its DaemonSet does.
func (k *kubernetesNodes) Reload(i int) { k.Restart(i) }

func (k *kubernetesNodes) Processes() (all []*host.Process) {
	for _, one := range k.running {
		all = append(all, one)
	}
	return all
}
