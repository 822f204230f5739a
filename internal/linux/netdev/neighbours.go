package netdev

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// neighbourProtocol says whose entries of the kernel's neighbour table are ours ("proto 181" in `ip neigh`).
const neighbourProtocol = 181

type neighbourTable struct{ ifindex, family int }

type neighbourKey struct {
	table   neighbourTable
	address netip.Addr
}

func neighbourOf(ifindex int, address netip.Addr) neighbourKey {
	family := netlink.FAMILY_V6
	if address.Is4() {
		family = netlink.FAMILY_V4
	}
	return neighbourKey{neighbourTable{ifindex, family}, address}
}

// neighbour is an entry of the kernel's table; the zero neighbour: there is none.
type neighbour struct {
	netlink.Neigh
	protocol uint8
}

// Usable neighbour states: the kernel itself would send to these without waiting.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP

func (n *neighbour) usable() bool { return n.State&usable != 0 && len(n.HardwareAddr) == 6 }

// kept reports whether somebody has the kernel keep the entry: what is asked of it without the same flags would undo that.
func (n *neighbour) kept() bool {
	return n.Flags&netlink.NTF_EXT_LEARNED != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
}

// keptByUs reports whether a process of ours has the kernel keep the entry.
func (n *neighbour) keptByUs() bool {
	return n.protocol == neighbourProtocol && n.Flags&netlink.NTF_EXT_LEARNED != 0 && n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
}

// Kept are the neighbours that a process has the kernel keep resolved (NTF_MANAGED), outside of the limits of its table (NTF_EXT_LEARNED):
// all next hops that are looked up through it. They stay when the process ends, as its data path does. The zero value keeps none.
// It is not safe for concurrent use.
type Kept struct {
	mine   map[neighbourKey]bool // kept by this process, or by an earlier one
	wanted map[neighbourKey]bool // in this round
	probed map[neighbourKey]bool // by Probe, without an answer so far
}

// Resolver begins a round of questions: it looks up by routes, and keeps.
func (k *Kept) Resolver(routes *Routes) *Resolver {
	k.wanted = map[neighbourKey]bool{}
	r := NewResolverBy(routes)
	r.kept = k
	return r
}

// keep has the kernel keep a neighbour, unless somebody has given it for good or keeps it already.
func (k *Kept) keep(key neighbourKey, n neighbour) error {
	k.wanted[key] = true
	if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || n.kept() && n.protocol != neighbourProtocol {
		return nil
	}
	answered, failed := n.State&netlink.NUD_REACHABLE != 0, n.State&netlink.NUD_FAILED != 0
	if !n.keptByUs() || failed && k.probed[key] { // said again, it begins to resolve at once, not only 5 s later
		if err := change(unix.RTM_NEWNEIGH, key, keptChange); err != nil {
			return errors.Join(err, resolve(key))
		}
	}
	if answered || failed {
		delete(k.probed, key)
	}
	if k.mine != nil { // else Release finds it
		k.mine[key] = true
	}
	return nil
}

// Probe has the kernel ask the next hops towards addresses, as far as they are kept, whether they still are where they were, because a server
// there has not answered: it may have another link-layer address by now that it did not announce. An entry that the kernel believes
// for half a minute more fails within 3 s then, and is resolved anew. What cannot be asked is left out.
func (k *Kept) Probe(addresses []netip.Addr) (err error) {
	resolver, seen := NewResolver(), map[neighbourKey]bool{}
	for _, address := range addresses {
		_, key, unknown := resolver.route(address)
		if unknown != nil || seen[key] {
			continue
		}
		seen[key] = true
		n, failed := resolver.entry(key)
		if failed != nil {
			return failed
		}
		if !n.keptByUs() || n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY) == 0 {
			continue
		}
		probe := neighbourChange{flags: netlink.NTF_EXT_LEARNED, state: netlink.NUD_PROBE, mac: n.HardwareAddr}
		switch failed := change(unix.RTM_NEWNEIGH, key, probe); {
		case errors.Is(failed, unix.ENOENT) || errors.Is(failed, unix.ENODEV):
			continue // it has gone meanwhile
		case failed != nil:
			err = errors.Join(err, failed)
		}
		err = errors.Join(err, change(unix.RTM_NEWNEIGH, key, keptChange)) // which the change of state has ended
		if k.probed == nil {
			k.probed = map[neighbourKey]bool{}
		}
		k.probed[key] = true
	}
	return err
}

// Release lets those go that this round has not asked for. The first time these may be an earlier process's. Another instance's are kept
// again by it when it looks next.
func (k *Kept) Release() error {
	first, surplus := k.mine == nil, false
	for key := range k.mine {
		surplus = surplus || !k.wanted[key]
	}
	if !first && !surplus {
		return nil
	}
	ours, err := ourNeighbours()
	if err != nil {
		return err
	}
	mine := map[neighbourKey]bool{}
	for key, n := range ours {
		switch {
		case k.wanted[key]:
			mine[key] = true
		case first || k.mine[key]:
			err = errors.Join(err, release(key, n))
		}
	}
	k.mine = mine
	maps.DeleteFunc(k.probed, func(key neighbourKey, _ bool) bool { return !mine[key] })
	return err
}

// ReleaseNeighbours lets all go that processes of ours in the calling thread's network namespace have had kept. Those that run keep theirs
// again when they look next.
func ReleaseNeighbours() error {
	ours, err := ourNeighbours()
	for key, n := range ours {
		err = errors.Join(err, release(key, n))
	}
	return err
}

// release leaves an entry to the kernel's own rules; one that cannot be sent to goes.
func release(key neighbourKey, n neighbour) (err error) {
	if n.usable() {
		err = resolve(key)
	} else {
		err = change(unix.RTM_DELNEIGH, key, neighbourChange{})
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// resolve makes the kernel resolve or confirm a neighbour as if it had a packet for it ("ip neigh ... use"). Its outcome arrives as a
// neighbour update.
func resolve(key neighbourKey) error {
	return change(unix.RTM_NEWNEIGH, key, neighbourChange{flags: netlink.NTF_USE, create: true})
}

type neighbourChange struct {
	flags    uint8
	extended uint32 // NDA_FLAGS_EXT
	create   bool
	state    uint16           // 0: the kernel's
	mac      net.HardwareAddr // nil: the kernel's. Another one than it has by now is left alone, without create
}

// keptChange makes an entry one that the kernel keeps for us, or begins to resolve it.
var keptChange = neighbourChange{flags: netlink.NTF_EXT_LEARNED, extended: netlink.NTF_EXT_MANAGED, create: true}

// change asks the kernel for one entry. The netlink package does not set the protocol.
func change(message int, key neighbourKey, c neighbourChange) error {
	flags := unix.NLM_F_ACK
	if c.create {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	request := nl.NewNetlinkRequest(message, flags)
	request.AddData(&netlink.Ndmsg{Family: uint8(key.table.family), Index: uint32(key.table.ifindex), Flags: c.flags, State: c.state})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, key.address.AsSlice()))
	if c.mac != nil {
		request.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, c.mac))
	}
	if c.extended != 0 {
		request.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(c.extended)))
		request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{neighbourProtocol}))
	}
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("change neighbour %s: %w", key.address, err)
	}
	return nil
}

// ourNeighbours are those of all devices that a process of ours has had kept.
func ourNeighbours() (map[neighbourKey]neighbour, error) {
	ours := map[neighbourKey]neighbour{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := dumpNeighbours(family)
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			if address, ok := netip.AddrFromSlice(n.IP); ok && n.protocol == neighbourProtocol && n.kept() {
				ours[neighbourKey{neighbourTable{n.LinkIndex, family}, address.Unmap()}] = n
			}
		}
	}
	return ours, nil
}

// listNeighbours returns those of a device, whether they can be sent to or not.
func listNeighbours(table neighbourTable) (map[netip.Addr]neighbour, error) {
	list, err := dumpNeighbours(table.family)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Addr]neighbour, len(list))
	for _, n := range list {
		if address, ok := netip.AddrFromSlice(n.IP); ok && n.LinkIndex == table.ifindex {
			out[address.Unmap()] = n
		}
	}
	return out, nil
}

func dumpNeighbours(family int) (list []neighbour, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	header := &netlink.Ndmsg{Family: uint8(family)}
	request.AddData(header)
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what has changed meanwhile is reported
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, message := range messages {
		entry, err := netlink.NeighDeserialize(message)
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		n := neighbour{Neigh: *entry}
		attributes, err := nl.ParseRouteAttr(message[header.Len():])
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		for _, attribute := range attributes {
			if attribute.Attr.Type == netlink.NDA_PROTOCOL && len(attribute.Value) > 0 {
				n.protocol = attribute.Value[0]
			}
		}
		list = append(list, n)
	}
	return list, nil
}
