package model

import "fmt"

// DefaultJoinPorts is how many ports a service with mptcp has for further subflows.
const DefaultJoinPorts = 1024

// PerEpoch is how many of them an epoch of the cookie key has, each for one id: those of the one before stay valid meanwhile.
func (m *MPTCP) PerEpoch() uint16 { return m.Ports / 2 }

// Joins reports whether this is one of the ports that further subflows go to.
func (m *MPTCP) Joins(port uint16) bool {
	return m.FirstPort != 0 && port >= m.FirstPort && int(port) < int(m.FirstPort)+int(m.Ports)
}

// inRange reports whether one of them is in a range that a service names. Who has all ports leaves these to the servers.
func (m *MPTCP) inRange(r PortRange) bool {
	return m.FirstPort != 0 && r != AllPorts && int(r.First) < int(m.FirstPort)+int(m.Ports) && r.Last >= m.FirstPort
}

// validateMPTCP refuses where further subflows would not reach their server, or where nobody would hear of the port.
func (s *Service) validateMPTCP(path string, found *findings) {
	m := &s.MPTCP
	if *m == (MPTCP{}) {
		return
	}
	at := path + ".mptcp"
	if m.FirstPort == 0 {
		found.add(at+".first_port", "give the first port, as 40000", "missing: subflows join at ports of their own")
		return
	}
	if m.PerEpoch() == 0 {
		found.add(at+".ports", "use at least 2", "%d is too few: a server has a port for each of two epochs of the cookie key", m.Ports)
	}
	last := int(m.FirstPort) + int(m.Ports) - 1
	if last > 65535 {
		found.add(at+".ports", fmt.Sprintf("use at most %d", 65536-int(m.FirstPort)), "the last port would be %d", last)
	}
	for i, ports := range s.AllOfPorts() {
		if m.inRange(ports) {
			found.add(fmt.Sprintf("%s.ports[%d]", path, i), "give one of them other ports", "port %d is also one of mptcp's, %d to %d", max(ports.First, m.FirstPort), m.FirstPort, last)
		}
	}
	if s.Protocol != ProtocolTCP {
		found.add(at, "remove it", "MPTCP is TCP, and the service is %s", s.Protocol)
	}
	if vip := s.JoinVIP(); vip.Is6() && !vip.Is4In6() {
		found.add(at, "give an IPv4 service of the same servers mptcp: connections over IPv6 join there, too",
			"TCP's options have no room for an IPv6 address with a port beside timestamps, so that no client would hear of it")
	}
	if s.Return != ReturnDirect {
		found.add(at, "use return: direct", "servers take further subflows at the vip, and with return: %s an agent to announce it to clients is missing", s.Return)
	}
	if s.Affinity == AffinityTable || s.Affinity == AffinityLocal {
		found.add(at, "use affinity: cookie", "affinity %s finds connections by entries, and further subflows have none", s.Affinity)
	} else if !s.Affinity.KeepsIDs() {
		found.add(at, "use affinity: cookie", "with affinity %s a removed server's id is not remembered: its port would become another server's", s.Affinity)
	}
}
