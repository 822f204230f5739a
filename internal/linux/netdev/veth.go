package netdev

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Peer is the far end of a veth pair. It may be in another network namespace.
type Peer struct {
	Name    string
	Known   bool   // the kernel shows it; else the rest is zero
	Program uint32 // id of its native XDP program, 0: none
}

// readPeer finds the peer of a veth device.
func readPeer(device netlink.Link) (peer Peer) {
	attrs := device.Attrs()
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(attrs.ParentIndex)
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	request.AddData(message)
	if attrs.NetNsID >= 0 {
		request.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(attrs.NetNsID))))
	}
	answers, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(answers) == 0 {
		return peer
	}
	found, err := netlink.LinkDeserialize(nil, answers[0])
	if err != nil || found.Type() != "veth" {
		return peer
	}
	peer = Peer{Name: found.Attrs().Name, Known: true}
	if xdp := found.Attrs().Xdp; xdp != nil && xdp.Attached && xdp.AttachMode == nl.XDP_ATTACHED_DRV {
		peer.Program = xdp.ProgId
	}
	return peer
}
