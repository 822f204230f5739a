package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// XDPFeatures is what a driver says of its XDP (NETDEV_A_DEV_XDP_FEATURES, Linux >= 6.3).
type XDPFeatures uint64

// Bits of XDPFeatures, numbered by the kernel.
const (
	XDPBasic    XDPFeatures = 1 << 0 // native programs
	XDPRedirect XDPFeatures = 1 << 1
	XDPTransmit XDPFeatures = 1 << 2 // takes frames that are redirected to it; a veth: its peer can receive them
	XDPBuffers  XDPFeatures = 1 << 5 // frames in several buffers
)

// Device is what a network device is and how it is set.
type Device struct {
	Name       string
	Index      int
	Kind       string // veth, vlan, bond, bridge, ... or "device"
	Up         bool
	MTU        int
	Driver     string // empty: none is told
	Master     string // device that this one is a part of
	MasterKind string
	Parent     string // of a VLAN device
	Peer       Peer   // of a veth device
	Prefixes   []netip.Prefix

	XDPProgram       uint32 // id, 0: none
	XDPGeneric       bool   // how that program is attached
	XDPFeatures      XDPFeatures
	XDPFeaturesKnown bool

	Offloads      map[string]bool // by ethtool's name; nil: not told
	Parts         []Part          // of a bond or a team
	ReceiveQueues int
	RPS           bool // some queue spreads its packets over CPUs
	RPSKnown      bool
}

// Part is a device below a bond or a team. Its offloads are what counts: the whole shows flags of its own.
type Part struct {
	Name     string
	Offloads map[string]bool
}

// NotFound is the error for a device that is not in the calling thread's network namespace; it names those that are.
func NotFound(name string, why error) error {
	if failed := new(net.OpError); errors.As(why, &failed) {
		why = failed.Err // without "route ip+net"
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("find interface %s: %w: see `ip link`", name, why)
	}
	var names []string
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	return fmt.Errorf("find interface %s: %w: this host has %s", name, why, cmp.Or(strings.Join(names, ", "), "none but lo"))
}

// Name is how people know a device of the calling thread's network namespace; one that has gone has its index only.
func Name(ifindex int) string {
	if device, err := net.InterfaceByIndex(ifindex); err == nil {
		return device.Name
	}
	return fmt.Sprintf("if%d", ifindex)
}

// ReadDevice reads a device of the calling thread's network namespace. What the device or the kernel does not tell is left zero.
func ReadDevice(name string) (Device, error) {
	found, err := netlink.LinkByName(name)
	if err != nil {
		return Device{}, NotFound(name, err)
	}
	attrs := found.Attrs()
	d := Device{
		Name: name, Index: attrs.Index, Kind: found.Type(), Up: attrs.Flags&net.FlagUp != 0, MTU: attrs.MTU, ReceiveQueues: attrs.NumRxQueues,
	}
	if attrs.Xdp != nil && attrs.Xdp.Attached {
		d.XDPProgram, d.XDPGeneric = attrs.Xdp.ProgId, attrs.Xdp.AttachMode == nl.XDP_ATTACHED_SKB
	}
	if master, err := netlink.LinkByIndex(attrs.MasterIndex); attrs.MasterIndex != 0 && err == nil {
		d.Master, d.MasterKind = master.Attrs().Name, master.Type()
	}
	if found.Type() == "vlan" {
		if parent, err := netlink.LinkByIndex(attrs.ParentIndex); err == nil {
			d.Parent = parent.Attrs().Name
		}
	}
	if found.Type() == "veth" {
		d.Peer = readPeer(found)
	}
	addresses, err := netlink.AddrList(found, netlink.FAMILY_ALL)
	if err != nil {
		return Device{}, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.IPNet.String()); err == nil {
			d.Prefixes = append(d.Prefixes, prefix)
		}
	}
	d.XDPFeatures, d.XDPFeaturesKnown = xdpFeatures(d.Index)
	d.readDriver()
	d.readSteering(attrs.HardwareAddr)
	return d, nil
}

func (d *Device) readDriver() {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer tool.Close()
	d.Driver, _ = tool.DriverName(d.Name)
	d.Offloads, _ = tool.Features(d.Name)
	if d.Kind == "bond" || d.Kind == "team" {
		links, _ := netlink.LinkList()
		for _, link := range links {
			if attrs := link.Attrs(); attrs.MasterIndex == d.Index {
				offloads, _ := tool.Features(attrs.Name)
				d.Parts = append(d.Parts, Part{attrs.Name, offloads})
			}
		}
	}
	if channels, err := tool.GetChannels(d.Name); err == nil && channels.CombinedCount+channels.RxCount > 0 {
		d.ReceiveQueues = int(channels.CombinedCount + channels.RxCount)
	}
}

// readSteering reads rps_cpus, unless /sys shows another network namespace than the calling thread's.
func (d *Device) readSteering(mac net.HardwareAddr) {
	dir := filepath.Join("/sys/class/net", d.Name)
	index, _ := os.ReadFile(filepath.Join(dir, "ifindex"))
	address, _ := os.ReadFile(filepath.Join(dir, "address"))
	if strings.TrimSpace(string(index)) != strconv.Itoa(d.Index) || strings.TrimSpace(string(address)) != mac.String() {
		return
	}
	masks, _ := filepath.Glob(filepath.Join(dir, "queues/rx-*/rps_cpus"))
	for _, mask := range masks {
		if value, err := os.ReadFile(mask); err == nil {
			d.RPSKnown = true
			d.RPS = d.RPS || strings.Trim(string(value), "0,\n") != ""
		}
	}
}

// Generic netlink family "netdev".
const (
	netdevGetDevice    = 1
	netdevIfindex      = 1
	netdevXDPFeatures  = 3
	netdevFamilyName   = "netdev"
	genericHeaderBytes = 4
)

// genericHeader is command, version and the reserved bytes, which the kernel wants to be zero; nl.Genlmsg has none of its own.
type genericHeader [genericHeaderBytes]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }

// xdpFeatures asks the driver. Kernels before 6.3 do not tell.
func xdpFeatures(ifindex int) (XDPFeatures, bool) {
	family, err := netlink.GenlFamilyGet(netdevFamilyName)
	if err != nil {
		return 0, false
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genericHeader{netdevGetDevice, 1})
	request.AddData(nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(ifindex))))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(answers) == 0 || len(answers[0]) < genericHeaderBytes {
		return 0, false
	}
	attributes, err := nl.ParseRouteAttr(answers[0][genericHeaderBytes:])
	if err != nil {
		return 0, false
	}
	for _, attribute := range attributes {
		if attribute.Attr.Type == netdevXDPFeatures && len(attribute.Value) == 8 {
			return XDPFeatures(nl.NativeEndian().Uint64(attribute.Value)), true
		}
	}
	return 0, false
}

// Sysctl reads a number, as the calling thread's network namespace has it.
func Sysctl(key string) (int, error) {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// DeviceSysctl reads net.FAMILY.conf.DEVICE.NAME; the names of devices may have dots.
func DeviceSysctl(family, device, name string) (int, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys/net", family, "conf", device, name))
	if err != nil {
		return 0, fmt.Errorf("read net.%s.conf.%s.%s: %w", family, device, name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// A DefaultRoute is where packets to anywhere go.
type DefaultRoute struct {
	Interface string
	IPv6      bool
	AdvMSS    int // announced to peers; 0: what the device's MTU allows
	MTU       int // 0: the device's
}

// DefaultRoutes returns those of the calling thread's network namespace, every next hop of a multipath route on its own.
func DefaultRoutes() (out []DefaultRoute, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil {
			return nil, fmt.Errorf("list default routes: %w", err)
		}
		for _, route := range routes {
			devices := []int{route.LinkIndex}
			for _, hop := range route.MultiPath {
				devices = append(devices, hop.LinkIndex)
			}
			for _, index := range devices {
				device, err := netlink.LinkByIndex(index)
				if index == 0 || err != nil {
					continue
				}
				entry := DefaultRoute{device.Attrs().Name, family == netlink.FAMILY_V6, route.AdvMSS, route.MTU}
				if !slices.Contains(out, entry) {
					out = append(out, entry)
				}
			}
		}
	}
	return out, nil
}

// DefaultInterfaces returns the names of the devices of the default routes.
func DefaultInterfaces() (names []string, err error) {
	routes, err := DefaultRoutes()
	if err != nil {
		return nil, err
	}
	for _, route := range routes {
		if !slices.Contains(names, route.Interface) {
			names = append(names, route.Interface)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("choose interfaces: there is no default route: name them with --interface")
	}
	return names, nil
}

// AddressDevices returns the device that holds each address of the calling thread's network namespace.
func AddressDevices() (map[netip.Addr]string, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list this host's devices: %w", err)
	}
	out := map[netip.Addr]string{}
	for _, device := range devices {
		list, err := device.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", device.Name, err)
		}
		for _, entry := range list {
			if prefix, err := netip.ParsePrefix(entry.String()); err == nil {
				out[prefix.Addr().Unmap()] = device.Name
			}
		}
	}
	return out, nil
}

// IPVSDevice is where kube-proxy in mode ipvs puts the addresses of Services. It takes their packets before any socket has them.
const IPVSDevice = "kube-ipvs0"

// Below is the index of the device that a VLAN's frames come in by, 0: it is no VLAN, or that is not known.
func Below(device *net.Interface) int {
	vlan, err := netlink.LinkByIndex(device.Index)
	if err != nil || vlan.Type() != "vlan" {
		return 0
	}
	return vlan.Attrs().ParentIndex
}
