package api

import (
	"net/netip"
	"time"
)

// PathBGP is answered by a BGPStatus.
const PathBGP = "/v1/bgp" // GET

// BGPStatus is a load balancer's part in BGP.
type BGPStatus struct {
	AS         uint32        `json:"as"`
	RouterID   netip.Addr    `json:"router_id,omitzero"`
	ListenPort uint16        `json:"listen_port,omitempty"`
	Neighbors  []BGPNeighbor `json:"neighbors"`
	VIPs       []BGPVIP      `json:"vips"`
	Problems   []string      `json:"problems,omitempty"`
}

// BGPNeighbor is a router.
type BGPNeighbor struct {
	Address netip.Addr `json:"address"`
	AS      uint32     `json:"as"`
	Up      bool       `json:"up"`
	Since   time.Time  `json:"since"`
	Why     string     `json:"why,omitempty"`     // there is no session
	Carries []string   `json:"carries,omitempty"` // ipv4, ipv6
	Local   netip.Addr `json:"local,omitzero"`    // address of this end: the next hop
	BFD     *BGPBFD    `json:"bfd,omitempty"`
}

// BGPBFD is the BFD session with a router.
type BGPBFD struct {
	Up        bool    `json:"up"`
	Received  uint64  `json:"received"`
	Refused   uint64  `json:"refused"`
	Detection Seconds `json:"detection_seconds"` // the router holds this host for dead after so long
}

// BGPVIP is a VIP that may be announced.
type BGPVIP struct {
	VIP       netip.Prefix `json:"vip"`
	Announced bool         `json:"announced"`
	Since     time.Time    `json:"since"`
	Why       string       `json:"why"`
	To        []netip.Addr `json:"to"`
}
