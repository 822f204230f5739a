package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const generateKeys = "create them with `ballast ctl key generate`"

// Validate checks everything that can be known without the machine. It returns nil or joined errors (errors.Join), each an
// *Invalid. Call it after ApplyDefaults: unset choices are errors.
func (f *Fleet) Validate() error {
	var found findings
	f.validateKeys(&found)
	if len(f.Services) > MaxServices {
		found.add("services", "split the fleet", "%d services, at most %d fit", len(f.Services), MaxServices)
	}
	quic, sessions := 0, 0
	for i := range f.Services {
		if f.Services[i].Affinity == AffinityQUIC {
			quic++
		}
		if f.Services[i].BegunForServers() {
			sessions++
		}
	}
	if sessions > MaxSessionServices {
		found.add("services", "split the fleet", "%d services with session tls or syn_proxy, at most %d fit", sessions, MaxSessionServices)
	}
	if quic > MaxQUICServices {
		found.add("services", "split the fleet", "%d services with affinity quic, at most %d fit", quic, MaxQUICServices)
	}
	for i := range f.Services {
		f.Services[i].validate(fmt.Sprintf("services[%d]", i), &found)
	}
	f.validateNames(&found)
	f.validateVIPs(&found)
	f.validateNATServers(&found)
	f.validateNodes(&found)
	f.validateReplicas(&found)
	f.validateTunnelsFrom(&found)
	checkChoice("unserved", unservedNames, f.Unserved, &found)
	return found.join()
}

func (f *Fleet) validateTunnelsFrom(found *findings) {
	if len(f.TunnelsFrom) > MaxTunnelSources {
		found.add("tunnels_from", "name load balancers alone", "%d addresses, at most %d fit", len(f.TunnelsFrom), MaxTunnelSources)
	}
	seen := make(map[netip.Addr]int, len(f.TunnelsFrom))
	for i, address := range f.TunnelsFrom {
		path := fmt.Sprintf("tunnels_from[%d]", i)
		if address.Zone() != "" || address.Is4In6() || !address.IsGlobalUnicast() {
			found.add(path, "use an address of a host, like 10.0.0.11 or 2001:db8::11", "%s is none that packets come from", address)
		} else if first, ok := seen[address]; ok {
			found.add(path, "remove it", "%s is also tunnels_from[%d]", address, first)
		}
		seen[address] = i
	}
}

func (f *Fleet) validateKeys(found *findings) {
	var zero [16]byte
	if len(f.Services) > 0 && f.Keys.Placement == zero {
		found.add("keys.placement", generateKeys, "no placement key: clients could choose their server")
	}
	usesCookies := slices.ContainsFunc(f.Services, func(s Service) bool { return s.Keyed() })
	if len(f.Keys.Cookie) == 0 {
		if usesCookies {
			found.add("keys.cookie", generateKeys, "no cookie key, but a service needs one")
		}
		if f.Keys.Current != 0 {
			found.add("keys.current", "remove it or add the key", "epoch %d is current but there are no cookie keys", f.Keys.Current)
		}
		return
	}
	epochs := f.Keys.Epochs()
	for _, epoch := range epochs {
		path := fmt.Sprintf("keys.cookie.%d", epoch)
		if epoch == 0 {
			found.add(path, "use 1 or more", "epochs start at 1")
		}
		if f.Keys.Cookie[epoch] == zero {
			found.add(path, generateKeys, "the key is all zeros")
		}
	}
	switch {
	case len(epochs) > 2:
		found.add("keys.cookie", "drop the oldest with `ballast ctl key drop`", "%d epochs, a cookie distinguishes only two", len(epochs))
	case len(epochs) == 2 && epochs[1]-epochs[0] != 1:
		found.add("keys.cookie", fmt.Sprintf("name the newer one %d", epochs[0]+1), "epochs %d and %d are not consecutive", epochs[0], epochs[1])
	case len(epochs) == 2 && f.Keys.Cookie[epochs[0]] == f.Keys.Cookie[epochs[1]]:
		found.add("keys.cookie", generateKeys, "epochs %d and %d have the same key", epochs[0], epochs[1])
	}
	if _, ok := f.Keys.Cookie[f.Keys.Current]; !ok {
		found.add("keys.current", fmt.Sprintf("use %d", epochs[len(epochs)-1]), "epoch %d has no key under keys.cookie", f.Keys.Current)
	}
}

// Epochs returns the epochs that have a cookie key, ascending.
func (k *Keys) Epochs() []uint32 {
	epochs := make([]uint32, 0, len(k.Cookie))
	for epoch := range k.Cookie {
		epochs = append(epochs, epoch)
	}
	slices.Sort(epochs)
	return epochs
}

func (f *Fleet) validateNames(found *findings) {
	seen := make(map[string]int)
	for i, s := range f.Services {
		if first, ok := seen[s.Name]; ok && s.Name != "" {
			found.add(fmt.Sprintf("services[%d].name", i), "choose another name", "%q is also the name of services[%d]", s.Name, first)
			continue
		}
		seen[s.Name] = i
	}
}

func (f *Fleet) validateVIPs(found *findings) {
	vips, count := make(map[netip.Addr]string), 0
	prefixes := make(map[Prefix]string)
	for i := range f.Services {
		s := &f.Services[i]
		if s.Functions() {
			if other, taken := prefixes[s.Destinations]; taken {
				found.add(fmt.Sprintf("services[%d].destinations", i), "give one of them other addresses", "service %s also has %s", other, s.Destinations)
			}
			prefixes[s.Destinations] = s.Name
			continue
		}
		for _, vip := range s.VIPs() {
			vips[vip] = s.Name
			count++
		}
	}
	if len(f.Services) <= MaxServices && count > MaxServices {
		found.add("services", "split the fleet", "%d vips of services, at most %d fit", count, MaxServices)
	}
	f.validateListeners(found)
	for i := range f.Services {
		f.validateJoins(i, found)
	}
	for i, s := range f.Services {
		for j, server := range s.Servers {
			if name, ok := vips[server.Address]; ok && server.Address.IsValid() {
				found.add(fmt.Sprintf("services[%d].servers[%d].address", i, j), "use the server's own address",
					"%s is the vip of service %s: packets would loop", server.Address, name)
			}
		}
		f.validateSuccession(fmt.Sprintf("services[%d].predecessor", i), &s, vips, found)
	}
}

// validateJoins refuses ports of service i's mptcp that belong to another service of its vip, too.
func (f *Fleet) validateJoins(i int, found *findings) {
	s := &f.Services[i]
	m := &s.MPTCP
	for j := range f.Services {
		other := &f.Services[j]
		if m.FirstPort == 0 || j == i || !other.HasVIP(s.JoinVIP()) || other.Protocol != s.Protocol {
			continue
		}
		both := other.MPTCP.FirstPort != 0 && other.JoinVIP() == s.JoinVIP() && (m.Joins(other.MPTCP.FirstPort) || other.MPTCP.Joins(m.FirstPort))
		if both && j < i || slices.ContainsFunc(other.AllOfPorts(), m.inRange) {
			found.add(fmt.Sprintf("services[%d].mptcp.first_port", i), "give one of them other ports",
				"service %s has some of the ports %d to %d of %s", other.Name, m.FirstPort, int(m.FirstPort)+int(m.Ports)-1, s.JoinVIP())
		}
	}
}

// validateNATServers refuses two services that could not be told apart by the source of a server's answer.
func (f *Fleet) validateNATServers(found *findings) {
	type source struct {
		address  netip.Addr
		protocol Protocol
		port     uint16
	}
	sources := make(map[source]int)
	for i, s := range f.Services {
		if s.Forward != ForwardNAT {
			continue
		}
		for j, server := range s.Servers {
			ports := s.Ports
			if server.Port != 0 {
				ports = []uint16{server.Port}
			}
			for _, port := range ports {
				from := source{server.Address, s.Protocol, port}
				first, ok := sources[from]
				if ok && first != i {
					found.add(fmt.Sprintf("services[%d].servers[%d].address", i, j), "let the server listen on another port for one of them",
						"answers from %s could belong to service %s as well", netip.AddrPortFrom(server.Address, port), f.Services[first].Name)
					break
				}
				sources[from] = i
			}
		}
	}
}

// checkName allows what is safe in metrics, file names and on the command line; IPv6 addresses are names, too.
func checkName(path, name string, found *findings) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:"
	switch {
	case name == "":
		found.add(path, "give it a name", "missing")
	case len(name) > 63:
		found.add(path, "shorten it to 63 characters", "%d characters", len(name))
	case strings.Trim(name, allowed) != "" || strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(allowed, r) }):
		found.add(path, "use letters, digits and . _ - :", "%q has other characters", name)
	case strings.Trim(name[:1], "._-") == "":
		found.add(path, "begin with a letter, a digit or a colon", "%q begins with %q", name, name[:1])
	}
}

// checkAddress refuses what cannot be the destination of a unicast packet on the network.
func checkAddress(path string, a netip.Addr, found *findings) {
	switch {
	case !a.IsValid():
		found.add(path, "give an IPv4 or IPv6 address", "missing")
	case a.Is4In6():
		found.add(path, "write "+a.Unmap().String(), "%s is an IPv4 address in IPv6 notation", a)
	case a.Zone() != "":
		found.add(path, "write it without the zone", "%s is tied to an interface", a)
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		found.add(path, "use a unicast address that is not loopback", "%s cannot be reached through the network", a)
	}
}
