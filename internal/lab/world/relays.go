// Relays between a controller and its load balancers, which lose weights on purpose.
package world

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/relay"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// relayAddress is where a load balancer finds its relay, which is on the same node.
const relayAddress = "127.0.0.1:6443"

// relayed is a running relay.
type relayed struct {
	*Process
	share *os.File // of the weights that it loses: its standard input
}

// startRelays starts one on every load balancer and waits until all of them listen.
func (t *Trial) startRelays() {
	controller := ControllerName(1)
	for i := range t.Topology.LBs {
		node := LBName(i + 1)
		input, share, err := os.Pipe()
		script.Checkf(err, "make pipe for relay")
		p := t.startPeer(process.Relay, Spawn{Node: node, stdin: input}, relay.Options{
			Listen: relayAddress, Controller: netip.AddrPortFrom(manageAddress(controller), controlPort).String(), ControlledBy: controller,
			Node: node, TLSDir: t.certificates(),
		})
		input.Close()
		t.relays = append(t.relays, relayed{p, share})
		t.AwaitPort(t.Context, p, node, netip.MustParseAddrPort(relayAddress))
	}
}

// LoseWeights makes all relays lose a share of the updates from now on.
func (t *Trial) LoseWeights(share float64) {
	for _, one := range t.relays {
		if _, err := fmt.Fprintln(one.share, share); err != nil {
			script.Check(fmt.Errorf("lose weights at %s: %w", one.name, err))
		}
	}
}
