// Devices that are made on others: a packet passes the programs of both.
package server_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// eth0 is a port of a bridge that has the addresses, and both have the programs.
//
// Promise: Connections are kept on a server with two stacked devices (VLAN, bridge, bond, macvlan); they may stall
// if the upper device has both a queue and an egress filter that changes `tc_index`.
func TestPacketsAreRewrittenOnceWhereOneDeviceIsMadeOnAnother(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) { rewrittenOnce(t, "") })
}

// A filter that ends the walk over filters sets tc_index to its class.
func TestPacketsAreRewrittenOnceBesideFiltersThatChangeTcIndex(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) {
		rewrittenOnce(t, `for device in eth0 br0; do
tc qdisc add dev $device clsact 2>/dev/null || true
tc filter add dev $device ingress prio 9 protocol all u32 match u32 0 0 flowid 1:2
tc filter add dev $device egress prio 9 protocol all u32 match u32 0 0 flowid 1:2
done`)
	})
}

func rewrittenOnce(t *testing.T, filters string) {
	r := newRig(t, rigOptions{plain: true})
	run := func(script string) {
		progtest.Check(t, r.server.Do(func() error {
			if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", script, err, out)
			}
			return nil
		}))
	}
	run(`ip link add br0 type bridge
ip addr flush dev eth0
ip link set eth0 master br0
ip link set br0 address $(ip -o link show eth0 | sed 's/.*ether \([^ ]*\).*/\1/')
ip link set br0 up
ip addr add 10.9.0.2/24 dev br0
ip -6 addr add fd09::2/64 dev br0 nodad`)
	r.attach("")
	r.listen(false)
	progtest.Check(t, r.server.Do(func() error {
		device, err := net.InterfaceByName("br0")
		if err != nil {
			return err
		}
		_, err = r.agent.Attach(device, r.mode)
		return err
	}))
	run(filters)
	before, w := r.rejects(), r.watch()
	r.browse(6, 1, 1000, 100000)
	if above, below := r.count("egress_marked_above"), r.count("ingress_restored_below"); above == 0 || below == 0 {
		t.Errorf("%d packets were marked at the bridge and passed its port, %d were restored at the port and passed the bridge", above, below)
	}
	if unmarked := r.count("ingress_unmarked") + r.count("egress_unmarked_older_than_agent"); unmarked > 0 {
		t.Errorf("%d packets are of connections that are not marked", unmarked)
	}
	r.verify(w, before)
}
