// Devices that are made on others: a packet passes the programs of both.
package datapath_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
)

// eth0 is a port of a bridge that has the addresses, and both have the programs.
func TestPacketsAreRewrittenOnceWhereOneDeviceIsMadeOnAnother(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	check(t, r.server.Do(func() error {
		out, err := exec.Command("sh", "-ec", `ip link add br0 type bridge
ip addr flush dev eth0
ip link set eth0 master br0
ip link set br0 address $(ip -o link show eth0 | sed 's/.*ether \([^ ]*\).*/\1/')
ip link set br0 up
ip addr add 10.9.0.2/24 dev br0
ip -6 addr add fd09::2/64 dev br0 nodad`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make a bridge: %w: %s", err, out)
		}
		return nil
	}))
	r.attach("")
	r.listen(false)
	check(t, r.server.Do(func() error {
		device, err := net.InterfaceByName("br0")
		if err != nil {
			return err
		}
		_, err = r.agent.Attach(device, r.mode)
		return err
	}))
	before, w := r.rejects(), r.watch()
	r.browse(6, 1, 1000, 100000)
	if above, below := r.count("egress_marked_above"), r.count("ingress_restored_below"); above == 0 || below == 0 {
		t.Errorf("%d packets were marked at the bridge and passed its port, %d were restored at the port and passed the bridge", above, below)
	}
	r.verify(w, before)
}
