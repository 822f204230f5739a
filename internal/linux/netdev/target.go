package netdev

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// A Target is a device as the target of frames that native XDP programs on other devices redirect.
type Target struct {
	Veth          bool
	Peer          Peer // of a veth device
	Features      XDPFeatures
	FeaturesKnown bool
}

// ReadTarget reads a device of the calling thread's network namespace.
func ReadTarget(ifindex int) (t Target, err error) {
	found, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return t, fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	if t.Veth = found.Type() == "veth"; t.Veth {
		t.Peer = readPeer(found)
	}
	t.Features, t.FeaturesKnown = xdpFeatures(ifindex)
	return t, nil
}

// Takes reports whether the driver accepts redirected frames. Not known: the kernel (before 6.3) does not say, and there is no peer to ask.
func (t Target) Takes() (takes, known bool) {
	switch {
	case t.FeaturesKnown:
		return t.Features&XDPTransmit != 0, true
	case t.Veth && t.Peer.Known:
		return t.Peer.Program != 0, true
	}
	return false, false
}
