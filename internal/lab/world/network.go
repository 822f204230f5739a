// The network of a lab: its links, and what breaks them.
package world

import (
	"encoding/json"
	"net"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Network is a topology that has been built.
type Network struct {
	Topology
	lab    *host.Lab
	routes *Routes
	wire   *link.Wire            // what frames to the router pass
	lossy  map[string]*link.Wire // by end: NODE/INTERFACE
	slow   *host.Process         // the clients' link, if it is
	seen   host.Transcript       // the ClientHellos that it reports at its end
}

// Lose makes one end of a link lose frames on their way out; faults of zero make it whole again.
func (n *Network) Lose(node, name string, faults link.Faults) {
	end := node + "/" + name
	if n.lossy[end] == nil {
		wire := script.Must(link.Load())
		n.lossy[end] = wire
		n.lab.OnClose(func() { _ = wire.Close() })
		script.Check(n.lab.Space(node).Do(func() error {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			return wire.AttachLoss(link.Index)
		}))
	}
	script.Check(n.lossy[end].SetFaults(faults))
}

// losses are the frames that were lost on purpose, by end of a link.
func (n *Network) losses() map[string]link.Losses {
	all := map[string]link.Losses{}
	for end, wire := range n.lossy {
		losses, err := wire.Losses()
		script.Checkf(err, "read losses of %s", end)
		all[end] = losses
	}
	return all
}

// Silence makes all packets between the router and a load balancer disappear, as if it had lost its power, with its
// links up; false: no more.
func (n *Network) Silence(i int, silent bool) {
	var faults link.Faults
	if silent {
		faults.DropPermille = 1000
	}
	n.Lose(RouterNode, uplink(LBName(i)), faults)
	n.Lose(LBName(i), "eth0", faults)
}

// Partition cuts a node off the management network, or heals that.
func (n *Network) Partition(node string, cut bool) {
	script.Check(n.lab.Space(managementNode).SetLink(node, !cut))
}

// CutFirstPaths loses all that is sent to the addresses that clients' MPTCP connections began from.
func (n *Network) CutFirstPaths() {
	script.Check(n.lab.Run(RouterNode, "", "ip", "route", "add", "blackhole", firstPaths.String()))
}

// EndClientLink ends what is between clients and router, and returns what ClientHellos it has seen, by source.
func (n *Network) EndClientLink() (seen map[netip.Addr]slowlink.Seen) {
	n.slow.Stop(n.lab.Context)
	script.Check(json.Unmarshal([]byte(n.seen.String()), &seen))
	return seen
}

// OpenFrames opens the frames of a node's interface.
func (n *Network) OpenFrames(node, name string) (socket *frames.Socket, err error) {
	err = n.lab.Space(node).Do(func() error {
		socket, err = frames.Open(name)
		return err
	})
	return socket, err
}
