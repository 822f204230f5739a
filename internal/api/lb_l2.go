package api

import (
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
	Answers uint64     `json:"answers"` // that this load balancer has given
}

// L2Peer is another load balancer of the segment.
type L2Peer struct {
	Name  string    `json:"name"`
	MAC   string    `json:"mac"`
	Heard time.Time `json:"heard,omitzero"` // its last advertisement; none: not by this process
	Owned int       `json:"owned"`          // VIPs, as it said then
}
