package api

import (
	"fmt"
	"net/netip"
	"time"
)

// PathL2 is answered by an L2Status.
const PathL2 = "/v1/l2" // GET

// L2Status is a load balancer's part in the announcement of VIPs on its segment.
type L2Status struct {
	Interface string   `json:"interface"`
	MAC       string   `json:"mac,omitempty"`
	VIPs      []L2VIP  `json:"vips"`
	Peers     []L2Peer `json:"peers"`
	Problems  []string `json:"problems,omitempty"`

	LeaseSeconds float64 `json:"lease_seconds"` // that VIPs stay without this daemon
}

// L2VIP is a VIP that load balancers of the segment answer for.
type L2VIP struct {
	VIP     netip.Addr `json:"vip"`
	Owned   bool       `json:"owned"`           // by this load balancer
	Owner   string     `json:"owner,omitempty"` // load balancer that answers; empty: none is known
	Next    string     `json:"next,omitempty"`  // load balancer that takes it when this one, its owner, has been without a daemon for LeaseSeconds; empty: none could
	Since   time.Time  `json:"since,omitzero"`  // this load balancer took or left it
	Why     string     `json:"why"`
	Answers uint64     `json:"answers"`       // that this load balancer has given
	Off     bool       `json:"off,omitempty"` // it is given up: announce: off
	Foreign *L2Foreign `json:"foreign,omitempty"`
}

// L2Foreign is a host that answers for a VIP, and is no load balancer of this fleet.
type L2Foreign struct {
	MAC      string     `json:"mac"`
	Address  netip.Addr `json:"address,omitzero"`
	Is       string     `json:"is,omitempty"` // server or predecessor of a service
	Answered time.Time  `json:"answered"`     // its last answer
}

// String is "02:00:00:00:00:05 (10.0.0.5, predecessor of service web)".
func (h *L2Foreign) String() string {
	switch {
	case h.Is != "":
		return fmt.Sprintf("%s (%s, %s)", h.MAC, h.Address, h.Is)
	case h.Address.IsValid():
		return fmt.Sprintf("%s (%s)", h.MAC, h.Address)
	}
	return h.MAC
}

// L2Peer is another load balancer of the segment.
type L2Peer struct {
	Name  string    `json:"name"`
	MAC   string    `json:"mac"`
	Heard time.Time `json:"heard,omitzero"` // its last advertisement; none: not by this process
	Owned int       `json:"owned"`          // VIPs, as it said then
}
