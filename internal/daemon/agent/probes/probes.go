// Package probes finds out whether this host takes the packets of services at addresses that it does not have: where kube-proxy or another
// translation of addresses takes them to an application, no address says so. What counts is what becomes of a SYN here, or of an empty datagram: applications
// may leave that unanswered. Then it counts that connection tracking has seen it past all rules, on its way to another address.
package probes

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants. Who answers a probe has a handshake open for a moment.
const (
	period   = 5 * time.Second  // between two probes of one port, if there are not too many ports
	calm     = 15 * time.Second // the same by UDP: applications see the datagrams
	perLook  = 32               // probes at most
	patience = 3 * time.Second  // for an answer
	longer   = 5 * time.Second  // by UDP: for ICMP from a host that looks for a neighbour first
	ports    = 32               // of clients that are tried for one probe
	tries    = 2                // in a row without one: packets are lost
	life     = 30 * time.Second // of what a probe has shown, beyond the time that a round takes
	lastPort = 1023             // of clients: connections of others begin at higher ones
)

// Clients where a service allows any, which no host has (RFC 5737, RFC 3849).
var anybody = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// used are the ports up to lastPort that clients of UDP send from, as both ends have one: DNS, DHCP, TFTP, portmap, NTP, NetBIOS, SNMP, LDAP, IKE, syslog, RIP, DHCPv6.
var used = []uint16{53, 67, 68, 69, 111, 123, 137, 138, 161, 162, 389, 500, 514, 520, 521, 546, 547}

// Path is the data path.
type Path interface {
	SendProbe(*server.Probe) error
	EndProbe(*server.Probe) error
	ProbeFate(*server.Probe) (server.Fate, error)
}

// Tracked returns where connection tracking has a client's datagrams to a service go on to; invalid: it does not know.
type Tracked func(client, service netip.AddrPort) (to netip.AddrPort, err error)

// Probes are of the services that a host is a server of. They are not safe for concurrent use.
type Probes struct {
	path    Path
	tracked Tracked
	route   func(netip.Addr) (*net.Interface, error) // the device that answers leave by
	ways    map[netip.Addr]way                       // what it has said in this look

	absent     []netip.Addr // VIPs that are no address of this host
	services   []plan.AgentService
	translates string // what may take their packets all the same; empty: nothing translates addresses here
	ports      map[target]*port
}

// way is how answers to a client leave.
type way struct {
	device *net.Interface
	err    error
}

// port is one that SYNs are sent to.
type port struct {
	of         target
	walk       walk // of a range
	service    *model.Service
	probe      server.Probe // the last one, or the next one of a range
	sent       time.Time    // zero: none yet
	open       bool         // what becomes of it is not known yet
	lost       int          // in a row
	fate       server.Fate  // of the last one that something became of, or nothing in time
	passed     bool         // that was a datagram that went on to another address
	silent     string       // why nothing is known of the last datagrams, empty: something is
	shown      uint16       // which port that was
	known      bool         // there is one
	since      time.Time    // when that was so first
	at         time.Time    // when it was so last
	unprobable string       // why none could be sent, empty: it could
}

// New returns those of a host that serves nothing yet. route tells by which device answers to an address leave; they must not wait for a neighbour,
// as that of a load balancer that is switched off answers nobody: a probe from its address would seem lost.
func New(path Path, tracked Tracked, route func(netip.Addr) (*net.Interface, error)) *Probes {
	return &Probes{path: path, tracked: tracked, route: route, ports: map[target]*port{}}
}

// Set takes the services of this host, which of their VIPs it does not have, and what translates addresses here, empty: nothing.
func (p *Probes) Set(services []plan.AgentService, absent []netip.Addr, translates string) {
	p.services, p.absent, p.translates = services, absent, translates
	wanted := map[target]*port{}
	for _, s := range services {
		for _, at := range p.targets(s.Service, netip.Addr{}) {
			if wanted[at] = p.ports[at]; wanted[at] == nil {
				wanted[at] = &port{of: at, walk: walk{at: at.first.Port()}, probe: server.Probe{Service: at.first, UDP: at.udp, Client: netip.AddrPortFrom(netip.Addr{}, uint16(rand.N(lastPort)))}}
			}
			wanted[at].service = s.Service
		}
	}
	p.ports = wanted
}

// targets are what is probed of a service, at one VIP or, without one, at all that this host does not have.
func (p *Probes) targets(s *model.Service, vip netip.Addr) (list []target) {
	udp := s.Protocol == model.ProtocolUDP
	for _, at := range s.VIPs() {
		if vip.IsValid() && vip != at || !slices.Contains(p.absent, at) {
			continue
		}
		for _, number := range s.Ports {
			list = append(list, target{first: netip.AddrPortFrom(at, number), udp: udp})
		}
		for _, r := range s.PortRanges {
			list = append(list, target{netip.AddrPortFrom(at, max(r.First, 1)), r.Last, udp})
		}
	}
	return list
}

// Look sees what became of probes and sends those that are due. It is to be called about once a second in the host's network namespace. programs
// are the devices that have the agent's; balancers the addresses of load balancers, as far as they are known.
func (p *Probes) Look(now time.Time, programs func(device *net.Interface) bool, balancers []netip.Addr) {
	var due []*port
	p.ways = map[netip.Addr]way{}
	for _, one := range p.ports {
		if one.open {
			p.judge(one, now)
		}
		if again := one.lost > 0 && one.lost < tries || one.unprobable != ""; !one.open && (again || now.Sub(one.sent) >= one.of.period()) {
			due = append(due, one)
		}
	}
	slices.SortFunc(due, func(a, b *port) int {
		return cmp.Or(a.sent.Compare(b.sent), a.probe.Service.Compare(b.probe.Service))
	})
	for _, one := range due[:min(len(due), perLook)] {
		one.sent, one.unprobable = now, ""
		if err := p.send(one, programs, balancers); err != nil {
			one.unprobable = err.Error()
		}
	}
}

// judge sees what became of a probe.
func (p *Probes) judge(one *port, now time.Time) {
	fate, err := p.path.ProbeFate(&one.probe)
	if err != nil {
		one.open, one.unprobable = false, err.Error()
		return
	}
	if fate == server.ProbeUnanswered && now.Sub(one.sent) < one.of.patience() {
		return
	}
	one.open = false
	passed := false
	if one.of.udp && (fate == server.ProbeUnanswered || fate == server.ProbeRejected) {
		if passed, err = p.passedOn(&one.probe); passed && fate == server.ProbeRejected { // by the host that it was passed on to: this one
			fate = server.ProbeRefused
		}
	}
	if one.of.udp || fate == server.ProbeAnswered {
		if err := p.path.EndProbe(&one.probe); err != nil {
			one.unprobable = err.Error()
		}
	}
	if one.of.udp && !passed && fate == server.ProbeUnanswered {
		p.notSeen(one, err, now)
		return
	}
	if passed || taken(fate) {
		one.lost = 0
	} else if one.lost++; one.lost < tries {
		return
	}
	number := one.probe.Service.Port()
	if one.of.last != 0 && !p.goOn(one, one.walk.judge(one.of, number, fate, passed || taken(fate), now), now) {
		return
	}
	if !one.known || one.arrives() != (passed || taken(fate)) {
		one.since = now
	}
	one.fate, one.passed, one.shown, one.known, one.silent, one.at = fate, passed, number, true, "", now
}

// goOn has the next port of a range have its turn, and returns whether what was seen of the last one counts for the whole range.
func (p *Probes) goOn(one *port, whole bool, now time.Time) bool {
	one.lost = 0
	one.probe.Service = netip.AddrPortFrom(one.probe.Service.Addr(), p.next(one))
	if !whole && one.known {
		one.at = now
	}
	return whole
}

// arrives: packets reach whoever they are for, as far as can be seen.
func (one *port) arrives() bool { return one.passed || taken(one.fate) }

// passedOn reports whether a datagram has gone on to another address than the service's.
func (p *Probes) passedOn(probe *server.Probe) (bool, error) {
	to, err := p.tracked(probe.Client, probe.Service)
	return to.IsValid() && to != probe.Service, err
}

// notSeen takes note that nothing is known of a datagram: it may have been dropped, or something took it that connection tracking does not see.
func (p *Probes) notSeen(one *port, err error, now time.Time) {
	if one.lost++; one.lost < tries {
		return
	}
	if one.of.last != 0 && !p.goOn(one, one.walk.miss(one.of, one.probe.Service.Port(), now), now) {
		return
	}
	one.known = false
	if one.silent = "nothing answers datagrams, and connection tracking does not know of any that was passed on"; err != nil {
		one.silent = "nothing answers datagrams, and " + err.Error()
	}
}

// taken: whoever the packet is for has it, with or without a listener.
func taken(fate server.Fate) bool {
	return fate == server.ProbeAnswered || fate == server.ProbeRefused
}

func (p *Probes) send(one *port, programs func(*net.Interface) bool, balancers []netip.Addr) error {
	client, device, err := p.client(one, programs, balancers)
	if err != nil {
		return err
	}
	from, err := p.from(one, client)
	if err != nil {
		return err
	}
	one.probe.Client, one.probe.Device, one.probe.Sequence = from, device, rand.Uint32()
	err = p.path.SendProbe(&one.probe)
	one.open = err == nil
	return err
}

// from is a probe's client with another port than before: what was tracked of the last probe holds for a while. By UDP it is one without a flow, as the answers to
// that would not leave.
func (p *Probes) from(one *port, client netip.Addr) (netip.AddrPort, error) {
	number := one.probe.Client.Port()
	for range ports {
		number = number%lastPort + 1
		one.probe.Client = netip.AddrPortFrom(client, number)
		if !one.of.udp {
			return one.probe.Client, nil
		}
		if slices.Contains(used, number) {
			continue
		}
		if to, err := p.tracked(one.probe.Client, one.probe.Service); err != nil || !to.IsValid() { // judge tells of an error
			return one.probe.Client, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("%s itself has flows to %s from many ports", client, one.probe.Service)
}

// client is who a probe is from: one whom the service allows, whom answers reach by a device that has the programs, as they would leave this
// host by others. By UDP it is no client that may ask by itself, if others are allowed: the first address of a network is no host's (RFC 1122 3.2.1.3, RFC 4291 2.6.1).
func (p *Probes) client(one *port, programs func(*net.Interface) bool, balancers []netip.Addr) (netip.Addr, *net.Interface, error) {
	s, vip := one.service, one.probe.Service.Addr()
	candidates := slices.Concat(balancers, anybody)
	var hosts []netip.Addr
	for _, prefix := range s.Allow {
		network := prefix.Masked().Addr()
		switch {
		case !one.of.udp:
			candidates = append(candidates, prefix.Addr().Next(), prefix.Addr())
		case prefix.Bits() < prefix.Addr().BitLen()-1:
			candidates = append(candidates, network)
			hosts = append(hosts, network.Next())
		default:
			hosts = append(hosts, network)
		}
	}
	candidates = append(candidates, hosts...)
	why := errors.New("no client of its family is allowed")
	for _, client := range candidates {
		if client.Is4() != vip.Is4() || client.IsUnspecified() || !allowed(s.Allow, client) {
			continue
		}
		way := p.way(client)
		switch {
		case way.device != nil && !programs(way.device):
			why = fmt.Errorf("answers to %s leave by %s, where the agent's programs do not run", client, way.device.Name)
		case way.err != nil:
			why = way.err
		default:
			return client, way.device, nil
		}
	}
	return netip.Addr{}, nil, why
}

// way asks for that of a client once in a look.
func (p *Probes) way(client netip.Addr) way {
	known, ok := p.ways[client]
	if !ok {
		known.device, known.err = p.route(client)
		p.ways[client] = known
	}
	return known
}

func allowed(prefixes []netip.Prefix, client netip.Addr) bool {
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(client) })
}

// fresh: what probes have shown still counts.
func (p *Probes) fresh(one *port, now time.Time) bool {
	return one.known && now.Sub(one.at) <= life+time.Duration(len(p.ports)/perLook)*time.Second
}

// Lost is why packets of all clients of a service to one of its VIPs reach no application, empty: they do, or it is not known. A firewall, or
// a policy of the network of pods, may drop those of probes alone.
func (p *Probes) Lost(s *model.Service, vip netip.Addr, now time.Time) string {
	return p.lost(s, vip, now, func(one *port) bool { return one.fate == server.ProbeReturned })
}

// lost is why packets to ports of which matters is true are lost, or all to an address.
func (p *Probes) lost(s *model.Service, vip netip.Addr, now time.Time, matters func(*port) bool) string {
	if !slices.Contains(p.absent, vip) {
		return ""
	}
	targets := p.targets(s, vip)
	for _, at := range targets {
		if one := p.ports[at]; one != nil && p.fresh(one, now) && !one.arrives() {
			if why := p.without(vip); why != "" || matters(one) {
				return cmp.Or(why, one.problem())
			}
		}
	}
	if len(targets) == 0 || slices.ContainsFunc(targets, func(at target) bool { return p.ports[at] == nil || !p.fresh(p.ports[at], now) }) {
		return p.without(vip)
	}
	return ""
}

// without is what is wrong where nothing translates addresses, empty: something may.
func (p *Probes) without(vip netip.Addr) string {
	if p.translates != "" {
		return ""
	}
	return fmt.Sprintf("%s is not an address of this host: ip address add %s/%d dev lo", vip, vip, vip.BitLen())
}

// problem of a port whose packets are lost.
func (one *port) problem() string {
	at := netip.AddrPortFrom(one.probe.Service.Addr(), one.shown)
	return fmt.Sprintf("%s is not an address of this host, and since %s %s to its %s port %d are lost here: %s: look whether a rule of address translation takes them to an "+
		"application that runs (on a node of Kubernetes: kube-proxy, and a ready pod of the service on this node), or whether a firewall drops them; if only some clients may connect, name them in the service's allow",
		at.Addr(), one.since.UTC().Format(time.RFC3339), one.of.packets(), one.of.protocol(), at.Port(), one.of.how(one.fate))
}

// how packets are lost.
func (t target) how(fate server.Fate) string {
	if fate == server.ProbeRejected && t.udp {
		return "a rule of this host refuses them by ICMP"
	}
	return map[server.Fate]string{server.ProbeUnanswered: "nothing answers", server.ProbeRejected: "a rule of this host resets them",
		server.ProbeReturned: "this host sends them back to the network", server.ProbeUnreachable: "ICMP says that they do not arrive"}[fate]
}

// Obstacles are why packets of services are lost, or may be. problems: of which ports of ranges they are, and of which by UDP no probe can tell.
func (p *Probes) Obstacles(now time.Time) (found, problems []string) {
	for _, s := range p.services {
		for _, vip := range s.Service.VIPs() {
			if !slices.Contains(p.absent, vip) {
				continue
			}
			lost := p.lost(s.Service, vip, now, func(*port) bool { return true })
			if lost != "" {
				found = append(found, lost)
				continue
			}
			targets := p.targets(s.Service, vip)
			unknown, unseen := p.unknown(targets, now)
			found, problems = append(found, unknown...), slices.Concat(problems, unseen, p.holes(targets))
		}
	}
	slices.Sort(found)
	slices.Sort(problems)
	return slices.Compact(found), slices.Compact(problems)
}

// unknown tells of ports that no probe has shown anything of lately. unseen: datagrams to them may be taken all the same, and no probe can tell.
func (p *Probes) unknown(targets []target, now time.Time) (unknown, unseen []string) {
	for _, at := range targets {
		one := p.ports[at]
		if one == nil || p.fresh(one, now) {
			continue
		}
		why := cmp.Or(one.unprobable, one.silent, "no probe has shown it yet")
		text := fmt.Sprintf("%s is not an address of this host: whether packets to its %s port %d are taken here is not known: %s", at.first.Addr(), at.protocol(), one.probe.Service.Port(), why)
		if at.udp && cmp.Or(one.unprobable, one.silent) != "" {
			unseen = append(unseen, text)
		} else {
			unknown = append(unknown, text)
		}
	}
	return unknown, unseen
}

// Status returns what is known of each port.
func (p *Probes) Status(now time.Time) (list []api.ProbedPort) {
	for at, one := range p.ports {
		probed := api.ProbedPort{At: at.first, Protocol: at.protocol(), State: api.ProbeUnknown, Client: one.probe.Client.Addr()}
		if one.known {
			probed.At = netip.AddrPortFrom(at.first.Addr(), one.shown)
			age := api.InSeconds(now.Sub(one.at))
			probed.Age = &age
		}
		if p.fresh(one, now) {
			switch probed.State = api.ProbeLost; {
			case one.fate == server.ProbeAnswered:
				probed.State = api.ProbeTaken
			case one.fate == server.ProbeRefused:
				probed.State = api.ProbeRefused
			case one.passed:
				probed.State = api.ProbePassed
			}
		}
		list = append(list, probed)
	}
	slices.SortFunc(list, func(a, b api.ProbedPort) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Protocol, b.Protocol)) })
	return list
}
