package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/link"
)

// vethFindings are what the doctor says of the pair.
func (h *host) vethFindings() (bad string) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		for _, f := range doctor.Examine(h.t.Context(), doctor.Options{Role: doctor.RoleAuto, Instance: "test", RunDir: h.runDir()}) {
			if f.Check == "veth" && f.Severity == doctor.Problem {
				bad += f.Remedy
			}
		}
		return nil
	}))
	return bad
}

// onPeer runs do with the peer's end of the pair.
func (h *host) onPeer(do func(*net.Interface) error) {
	h.t.Helper()
	require(h.t, h.peer.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return do(device)
	}))
}

// The remedy that doctor has for a veth pair makes the check green, and packets flow.
//
// Promise: `ballast pass` makes a veth pair carry frames whose other end has no XDP program.
func TestThePassProgramMakesAVethPairAWire(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	h.await("ways to the servers", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	h.onPeer(link.DetachPass)
	require(t, h.peer.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change("eth0", map[string]bool{"rx-gro": true})
	}))
	if remedy := h.vethFindings(); !strings.Contains(remedy, "ballast pass --interface eth0") {
		t.Fatalf("GRO alone is not enough, and doctor's remedy is %q", remedy)
	}
	for range 2 { // twice does no harm
		h.onPeer(func(device *net.Interface) error {
			other, err := link.AttachPass(device)
			if other != "" {
				err = fmt.Errorf("somebody else's: %s", other)
			}
			return err
		})
	}
	if remedy := h.vethFindings(); remedy != "" {
		t.Errorf("with the program doctor still has %q", remedy)
	}
	h.expectTunnelled()
	h.onPeer(link.DetachPass)
	h.onPeer(func(device *net.Interface) error {
		if link.DetachPass(device) == nil {
			return errors.New("detached what was not there")
		}
		return nil
	})
}

// expectTunnelled sends one SYN to the service, and waits for it to come back in a tunnel.
func (h *lbHost) expectTunnelled() {
	h.t.Helper()
	var mac net.HardwareAddr
	require(h.t, h.space.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = device.HardwareAddr
		}
		return err
	}))
	before := h.counter("forwarded_new")
	var socket int
	h.onPeer(func(device *net.Interface) (err error) {
		protocol := uint16(unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8)
		if socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(protocol)); err != nil {
			return err
		}
		timeout := unix.NsecToTimeval(hostDeadline.Nanoseconds())
		return errors.Join(unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout), sendSYN(mac))
	})
	defer unix.Close(socket)
	const protocolAt, ipip = 14 + 9, 4
	for frame, end := make([]byte, 2048), time.Now().Add(hostDeadline); ; {
		n, _, err := unix.Recvfrom(socket, frame, 0)
		if err != nil || time.Now().After(end) {
			h.t.Fatalf("nothing came back by the tunnel: %v; %d packets were sent there", err, h.counter("forwarded_new")-before)
		}
		if n > protocolAt && frame[protocolAt] == ipip {
			return
		}
	}
}
