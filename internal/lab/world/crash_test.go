package world

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/plan"
)

// attachLB attaches a load balancer's program to eth0 of lb1, pinned as the daemon pins it, and lets go of it.
func attachLB(t *testing.T, network *Trial) error {
	t.Helper()
	dir := filepath.Join(network.Lab.NodeDir("lb1"), "run", "bpf")
	if err := pin.EnsureBPFFS(dir); err != nil {
		t.Fatal(err)
	}
	limits := plan.DefaultLimits
	limits.Slots = 1 << 16
	lb, err := lb.Open(filepath.Join(dir, instance), limits)
	if err != nil {
		t.Fatal(err)
	}
	defer lb.Close()
	return network.Lab.Space("lb1").Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			_, err = lb.Attach(device, attach.XDPNative)
		}
		return err
	})
}

func TestACrashLeavesNoProgramWhereOthersHaveCopiedTheMounts(t *testing.T) {
	defer fatal(t)
	network := newNetworkOf(t, Topology{LBs: 1})
	if err := attachLB(t, network); err != nil {
		t.Fatal(err)
	}
	process, err := network.Lab.Start(host.Spawn{Node: "lb1", Program: "sleep", Arguments: []string{"infinity"}})
	if err != nil {
		t.Fatal(err)
	}
	network.Lab.CopyMounts(ClientNode)
	network.Failures.Crash(&Daemon{Process: process}, "eth0", "eth1")
	await.Until(network.Context, 10*time.Second, "the program is gone", func() error { return attachLB(t, network) })
}
