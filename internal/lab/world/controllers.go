// A fleet that runs by controllers: etcd members, controllers, and relays between them and the load balancers.
package world

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/member"
	"github.com/ballast-lb/ballast/internal/lab/process/relay"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// relayAddress is where a load balancer finds its relay, which is on the same node.
const relayAddress = "127.0.0.1:6443"

// Controllers are those of a fleet, by node.
type Controllers struct {
	lab     *host.Lab
	network *Network
	Members map[string]*host.Process // of etcd
	Running map[string]*host.Process
	relayed []*os.File // of each relay its input: the share of weights that it loses
}

// start starts all etcd members and controllers and waits until the controllers answer.
func (c *Controllers) start() {
	c.Members, c.Running = map[string]*host.Process{}, map[string]*host.Process{}
	for _, node := range names(MemberName, c.network.EtcdMembers) {
		c.StartMember(node)
	}
	for _, node := range names(ControllerName, c.network.Controllers) {
		c.Start(node)
	}
	for node := range c.Running {
		c.Await(node)
	}
	if c.network.Relays {
		c.startRelays()
	}
}

// StartMember starts an etcd member, or starts it again with the data that it has.
func (c *Controllers) StartMember(node string) {
	var cluster []string
	for _, name := range names(MemberName, c.network.EtcdMembers) {
		cluster = append(cluster, name+"="+member.PeerURL(manageAddress(name).String()))
	}
	c.Members[node] = c.lab.StartPeer(process.Member, host.Spawn{Node: node}, member.Options{
		Name: node, Dir: filepath.Join(c.lab.NodeDir(node), "etcd"), Address: manageAddress(node).String(), Cluster: strings.Join(cluster, ","),
	})
}

// Start starts a controller, or starts it again.
func (c *Controllers) Start(node string) {
	var etcd []string
	for _, name := range names(MemberName, c.network.EtcdMembers) {
		etcd = append(etcd, member.ClientURL(manageAddress(name).String()))
	}
	c.Running[node] = script.Must(c.lab.Start(host.Spawn{Node: node, Program: c.lab.Binary, Arguments: []string{
		"controller", "--name", node, "--listen", netip.AddrPortFrom(manageAddress(node), controlPort).String(),
		"--etcd", strings.Join(etcd, ","), "--tls-dir", certificates(c.lab), "--run-dir", filepath.Join(c.lab.NodeDir(node), "run"),
		"--sources-dir", c.SourcesDir(),
	}}))
}

// Await waits until a controller listens.
func (c *Controllers) Await(node string) {
	c.Running[node].AwaitPort(netip.AddrPortFrom(manageAddress(node), controlPort))
	c.Running[node].Ready.Store(true)
}

// startRelays starts one on every load balancer and waits until all of them listen.
func (c *Controllers) startRelays() {
	controller := ControllerName(1)
	for _, node := range names(LBName, c.network.LBs) {
		input, share, err := os.Pipe()
		script.Checkf(err, "make pipe for relay")
		p := c.lab.StartPeer(process.Relay, host.Spawn{Node: node, Stdin: input}, relay.Options{
			Listen: relayAddress, Controller: netip.AddrPortFrom(manageAddress(controller), controlPort).String(), ControlledBy: controller,
			Node: node, TLSDir: certificates(c.lab),
		})
		input.Close()
		c.relayed = append(c.relayed, share)
		p.AwaitPort(netip.MustParseAddrPort(relayAddress))
	}
}

// LoseWeights makes all relays lose a share of the updates from now on.
func (c *Controllers) LoseWeights(share float64) {
	for _, relay := range c.relayed {
		_, err := fmt.Fprintln(relay, share)
		script.Checkf(err, "lose weights")
	}
}
