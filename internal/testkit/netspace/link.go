// Links between namespaces: veth pairs that behave like wires, bridges, addresses and routes.
package netspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An End is one end of a link.
type End struct {
	Space     *Space
	Interface string
	Addresses []netip.Prefix
	MTU       int
	Bridge    string // bridge in the same namespace that the end is a port of, or empty
}

// A NextHop is one way of a route; without a gateway the destination is on the link itself.
type NextHop struct {
	Gateway   netip.Addr
	Interface string
}

// Connect joins two ends by a veth pair. Each end is created inside its namespace, so that it gets
// that namespace's defaults (RPS, rp_filter, DAD).
func Connect(a, b End) error {
	err := a.Space.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: a.Interface, MTU: a.MTU, TxQLen: 1000},
			PeerName:      b.Interface,
			PeerNamespace: netlink.NsFd(int(b.Space.handle)),
			PeerMTU:       uint32(b.MTU),
		})
	})
	if err != nil {
		return fmt.Errorf("connect %s/%s to %s/%s: %w", a.Space.Name, a.Interface, b.Space.Name, b.Interface, err)
	}
	return errors.Join(a.wire(), b.wire(), a.configure(), b.configure())
}

func (e End) wire() error {
	return e.Space.Do(func() error { return behaveLikeWire(e.Interface) })
}

// Plug moves a network card of the caller's namespace to an end. Its offloads stay as they are. It comes back, under another name, when
// the namespace ends.
func Plug(card string, end End) error {
	err := end.Space.Take(card, func(link netlink.Link) error {
		return errors.Join(netlink.LinkSetName(link, end.Interface), netlink.LinkSetMTU(link, end.MTU))
	})
	if err != nil {
		return err
	}
	return end.configure()
}

// Take moves a network card of the caller's namespace here, and does something to it. It comes back, under the name that it has then, when the namespace
// ends.
func (s *Space) Take(card string, do func(netlink.Link) error) error {
	link, err := netlink.LinkByName(card)
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(s.handle))
	}
	if err == nil {
		err = s.onLink(card, do)
	}
	if err != nil {
		return fmt.Errorf("plug %s in %s: %w", card, s.Name, err)
	}
	return nil
}

func (e End) configure() error {
	err := e.Space.Do(func() error {
		if err := e.Space.spread(e.Interface); err != nil {
			return err
		}
		link, err := netlink.LinkByName(e.Interface)
		if err != nil {
			return err
		}
		if e.Bridge != "" {
			bridge, err := netlink.LinkByName(e.Bridge)
			if err != nil {
				return fmt.Errorf("bridge %s: %w", e.Bridge, err)
			}
			if err := netlink.LinkSetMaster(link, bridge); err != nil {
				return err
			}
		}
		if err := addAddresses(link, e.Addresses); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("configure %s/%s: %w", e.Space.Name, e.Interface, err)
	}
	return nil
}

// behaveLikeWire turns checksum offload off: XDP would see partial checksums on transmit, and on
// receive veth would vouch for checksums that our programs may have broken.
func behaveLikeWire(name string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	return tool.Change(name, map[string]bool{"tx-checksum-ip-generic": false, "rx-checksum": false})
}

// MergeSegments turns generic receive offload of an interface on or off (GRO).
func (s *Space) MergeSegments(name string, on bool) error {
	err := s.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer tool.Close()
		return tool.Change(name, map[string]bool{"rx-gro": on})
	})
	if err != nil {
		return fmt.Errorf("set GRO of %s of %s to %t: %w", name, s.Name, on, err)
	}
	return nil
}

// AddBridge makes a bridge with the namespace's own addresses on it.
func (s *Space) AddBridge(name string, mtu int, addresses ...netip.Prefix) error {
	return s.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add bridge %s in %s: %w", name, s.Name, err)
		}
		if err := netlink.LinkSetMTU(bridge, mtu); err != nil {
			return err
		}
		if err := addAddresses(bridge, addresses); err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	})
}

// AddAddress adds an address to an interface of the namespace.
func (s *Space) AddAddress(name string, prefix netip.Prefix) error {
	return s.onLink(name, func(link netlink.Link) error { return addAddresses(link, []netip.Prefix{prefix}) })
}

func addAddresses(link netlink.Link, prefixes []netip.Prefix) error {
	for _, prefix := range prefixes {
		address := &netlink.Addr{IPNet: ipNet(prefix)}
		if prefix.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s to %s: %w", prefix, link.Attrs().Name, err)
		}
	}
	return nil
}

// Route sets the route to destination, by one or several next hops of equal weight. mtu 0 leaves it
// to the interface.
func (s *Space) Route(destination netip.Prefix, mtu int, hops ...NextHop) error {
	err := s.Do(func() error {
		route := &netlink.Route{Dst: ipNet(destination), MTU: mtu}
		for _, hop := range hops {
			link, err := netlink.LinkByName(hop.Interface)
			if err != nil {
				return err
			}
			route.MultiPath = append(route.MultiPath,
				&netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: hop.Gateway.AsSlice()})
		}
		if !hops[0].Gateway.IsValid() {
			route.Scope = netlink.SCOPE_LINK
		}
		if len(hops) == 1 {
			route.LinkIndex, route.Gw, route.MultiPath = route.MultiPath[0].LinkIndex, route.MultiPath[0].Gw, nil
		}
		return netlink.RouteReplace(route)
	})
	if err != nil {
		return fmt.Errorf("route %s in %s: %w", destination, s.Name, err)
	}
	return nil
}

// SetLink takes an interface up or down.
func (s *Space) SetLink(name string, up bool) error {
	err := s.onLink(name, func(link netlink.Link) error {
		if up {
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	})
	if err != nil {
		return fmt.Errorf("set link %s of %s: %w", name, s.Name, err)
	}
	return nil
}

// MAC is the hardware address of an interface.
func (s *Space) MAC(name string) (mac net.HardwareAddr, err error) {
	err = s.Do(func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("look up MAC of %s of %s: %w", name, s.Name, err)
		}
		mac = link.HardwareAddr
		return nil
	})
	return mac, err
}

// KnowNeighbours tells the namespace neighbours on a link for good, so that they need no room in the kernel's table of those it
// has asked for, which all namespaces share.
func (s *Space) KnowNeighbours(name string, neighbours map[netip.Addr]net.HardwareAddr) error {
	err := s.Do(func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		for address, mac := range neighbours {
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: link.Index, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac,
			})
			if err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("give %s of %s its neighbours: %w", name, s.Name, err)
	}
	return nil
}

// AttachXDP attaches a loaded program to an interface of the namespace; it outlives this process.
func (s *Space) AttachXDP(name string, fd int) error {
	err := s.onLink(name, func(link netlink.Link) error { return netlink.LinkSetXdpFd(link, fd) })
	if err != nil {
		return fmt.Errorf("attach a program to %s of namespace %q: %w", name, s.Name, err)
	}
	return nil
}

// onLink does something to a link of the namespace.
func (s *Space) onLink(name string, do func(netlink.Link) error) error {
	return s.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return do(link)
	})
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
