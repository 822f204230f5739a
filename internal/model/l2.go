package model

import (
	"strings"
	"time"
)

// L2 is how a load balancer announces VIPs on its own segment, where no router learns them by BGP: by ARP and Neighbor Discovery. The zero value is that of one
// that does not.
type L2 struct {
	Interface string   `json:"interface"`      // device on the segment of clients, or of their router
	Delay     Duration `json:"announce_delay"` // as BGP.Delay
}

// IsZero reports whether nothing is given.
func (l L2) IsZero() bool { return l == L2{} }

// Announces reports whether the node announces VIPs.
func (n *Node) Announces() bool { return !n.BGP.IsZero() || !n.L2.IsZero() }

const maxInterfaceName = 15 // IFNAMSIZ

func (l *L2) applyDefaults() {
	if !l.IsZero() {
		setDefault(&l.Delay, 0, DefaultAnnounce)
	}
}

func (l *L2) validate(path string, found *findings) {
	switch {
	case l.Interface == "":
		found.add(path+".interface", "give the network device on the segment of clients, or of their router, as eth0", "missing")
	case len(l.Interface) > maxInterfaceName || strings.ContainsFunc(l.Interface, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }):
		found.add(path+".interface", "use the name that `ip link` shows", "%q is no name of a network device", l.Interface)
	case l.Interface == "lo":
		found.add(path+".interface", "use the device that clients' packets come in by", "nobody else is on lo")
	}
	checkDuration(path+".announce_delay", l.Delay, MinAnnounceDelay, Duration(time.Hour), found)
}
