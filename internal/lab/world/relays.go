// Relays between a controller and its load balancers, which lose weights on purpose.
package world

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/relay"
)

// relayAddress is where a load balancer finds its relay, which is on the same node.
const relayAddress = "127.0.0.1:6443"

// relayed is a running relay.
type relayed struct {
	*Process
	share *os.File // of the weights that it loses: its standard input
}

// startRelays starts one on every load balancer and waits until all of them listen.
func (t *Trial) startRelays() error {
	controller := ControllerName(1)
	for i := range t.Topology.LBs {
		node := LBName(i + 1)
		options, err := json.Marshal(relay.Options{
			Listen: relayAddress, Controller: netip.AddrPortFrom(manageAddress(controller), controlPort).String(), ControlledBy: controller,
			Node: node, TLSDir: t.certificates(),
		})
		if err != nil {
			return fmt.Errorf("encode options: %w", err)
		}
		input, share, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("make pipe for relay: %w", err)
		}
		p, err := t.Start(Spawn{Node: node, Program: t.Processes, Arguments: []string{process.Relay, string(options)}, stdin: input})
		input.Close()
		if err != nil {
			share.Close()
			return err
		}
		t.relays = append(t.relays, relayed{p, share})
		if err := t.AwaitPort(t.Context, p, node, netip.MustParseAddrPort(relayAddress)); err != nil {
			return err
		}
	}
	return nil
}

// LoseWeights makes all relays lose a share of the updates from now on.
func (t *Trial) LoseWeights(share float64) error {
	for _, one := range t.relays {
		if _, err := fmt.Fprintln(one.share, share); err != nil {
			return fmt.Errorf("lose weights at %s: %w", one.name, err)
		}
	}
	return nil
}
