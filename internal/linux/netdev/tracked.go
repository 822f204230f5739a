package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A TrackedConnection is one as its client sees it: before translation.
type TrackedConnection struct{ Client, Server netip.AddrPort }

const trackedAttempts = 3 // of a list that changes while it is read

// TrackedTCP lists the TCP connections of a family that the kernel's connection tracking takes for living, in the calling thread's
// network namespace. Cost: about a microsecond for each.
func TrackedTCP(ipv6 bool) (map[TrackedConnection]bool, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	var list []*netlink.ConntrackFlow
	var err error = netlink.ErrDumpInterrupted
	for i := 0; i < trackedAttempts && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		list, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
	}
	if err != nil {
		return nil, fmt.Errorf("list tracked connections: %w: it needs nf_conntrack_netlink", err)
	}
	found := map[TrackedConnection]bool{}
	for _, one := range list {
		if info, ok := one.ProtoInfo.(*netlink.ProtoInfoTCP); ok && lives(info.State) {
			found[TrackedConnection{addrPort(one.Forward.SrcIP, one.Forward.SrcPort), addrPort(one.Forward.DstIP, one.Forward.DstPort)}] = true
		}
	}
	return found, nil
}

// TrackedTo returns where connection tracking has the packets of a UDP flow go on to, as their server sees it, in the calling thread's network namespace;
// invalid: it does not know the flow. It knows those whose first packet no rule of this host has dropped on its way to a socket or a device.
func TrackedTo(client, server netip.AddrPort) (to netip.AddrPort, err error) {
	family, from, of := uint8(unix.AF_INET), uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
	if server.Addr().Is6() {
		family, from, of = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	flow := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	addresses := flow.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addresses.AddRtAttr(int(from), client.Addr().AsSlice())
	addresses.AddRtAttr(int(of), server.Addr().AsSlice())
	ports := flow.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, client.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, server.Port()))
	request.AddData(flow)
	answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return to, nil
	}
	if err != nil {
		return to, fmt.Errorf("look up a tracked flow: %w: it needs nf_conntrack_netlink", err)
	}
	if len(answers) == 0 || len(answers[0]) < nl.SizeofNfgenmsg {
		return to, errors.New("look up a tracked flow: the kernel's answer is empty")
	}
	reply := attribute(answers[0][nl.SizeofNfgenmsg:], nl.CTA_TUPLE_REPLY)
	address, ok := netip.AddrFromSlice(attribute(attribute(reply, nl.CTA_TUPLE_IP), from))
	port := attribute(attribute(reply, nl.CTA_TUPLE_PROTO), nl.CTA_PROTO_SRC_PORT)
	if !ok || len(port) != 2 {
		return to, errors.New("look up a tracked flow: the kernel's answer has no addresses")
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(port)), nil
}

// attribute is the content of one of those in a message, nil: it has none such.
func attribute(of []byte, kind uint16) []byte {
	list, err := nl.ParseRouteAttr(of)
	if err != nil {
		return nil
	}
	for _, a := range list {
		if a.Attr.Type&nl.NLA_TYPE_MASK == kind {
			return a.Value
		}
	}
	return nil
}

// lives: one end at least may still send something new.
func lives(state uint8) bool {
	return state == nl.TCP_CONNTRACK_ESTABLISHED || state == nl.TCP_CONNTRACK_FIN_WAIT || state == nl.TCP_CONNTRACK_CLOSE_WAIT
}

func addrPort(address net.IP, port uint16) netip.AddrPort {
	parsed, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(parsed.Unmap(), port)
}
