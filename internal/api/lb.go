package api

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
)

// Routes of a load balancer's daemon, beside those of every daemon and ballast.v1.Fleet: what is of this node alone.
const (
	PathServices     = "/v1/services"        // GET
	PathConfigDiff   = "/v1/config/diff"     // GET
	PathConfigAction = "/v1/config/{action}" // POST: reload, reset
	PathTrace        = "/v1/trace"           // GET, a stream of TraceEvent
	PathMetrics      = "/metrics"            // GET, Prometheus
)

// LBStatus is what a load balancer adds to Status.
type LBStatus struct {
	Status
	Interfaces  map[string]string `json:"interfaces"`            // name -> XDP mode
	Problems    []string          `json:"problems"`              // what is not as wanted, in words
	Controllers []string          `json:"controllers,omitempty"` // that are connected, of a node that runs by controllers
	Revision    uint64            `json:"revision,omitempty"`    // of the controllers' state that the tables say
}

// ServiceStatus is one service with what it counted.
type ServiceStatus struct {
	model.Service
	Verdicts map[string]Traffic `json:"verdicts"`
	Servers  []ServerStatus     `json:"servers"`
}

// Traffic counts packets and bytes of IP packets.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ServerStatus is one server of a service, also a removed one whose connections may still live.
type ServerStatus struct {
	model.Server
	Removed     bool   `json:"removed,omitempty"`
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"` // dispatched by this node
	Open        int32  `json:"open"`        // this node's estimate of those that live
	Path        string `json:"path"`        // next hop, or why there is none
	TakesPart   bool   `json:"takes_part"`  // false: return: through, and its timestamps do not allow a cookie
}

// Changed answers a change: what it did, one line each.
type Changed struct {
	Changes []string `json:"changes"`
}

// TraceEvent tells where a packet went and why.
type TraceEvent struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    uint8          `json:"protocol"`
	Flags       string         `json:"flags,omitempty"`
	Length      uint16         `json:"length"`
	Service     string         `json:"service,omitempty"`
	Server      string         `json:"server,omitempty"`
	ID          uint16         `json:"id,omitempty"`
	Verdict     string         `json:"verdict"`
	Stops       []string       `json:"stops,omitempty"`
	Timestamp   uint32         `json:"tsval,omitempty"`
	Echo        uint32         `json:"tsecr,omitempty"`
	Suppressed  uint32         `json:"suppressed,omitempty"` // events left out before this one
}
